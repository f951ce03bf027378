// Tensors and storages on the device: making them, finding their records, moving their data.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "plan.h"
#include "value.h"

namespace torch_tpu {

// A new tensor with its own storage; `layout` says how its Value will hold the elements. No Value yet.
at::Tensor make_tensor(const FreshTensor& meta, c10::DeviceIndex device);

// The layout of a dense tensor with these strides (its sizes in memory order), or null if it is not dense.
const Layout* dense_layout(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);

// The record of a `tpu` tensor's storage, with a layout: one is chosen at the first use of a bare storage.
StorageRecord& usable_record(const at::Tensor& tensor);

// Changes the size of a storage in bytes, keeping its data (UntypedStorage.resize_).
void resize_storage(const c10::Storage& storage, size_t nbytes);

// Replaces CPU tensors among the arguments (not 0-dim ones) by copies on `device`.
void move_host_tensors(OpEntry& entry, torch::jit::Stack& stack, size_t first, c10::DeviceIndex device);

}  // namespace torch_tpu
