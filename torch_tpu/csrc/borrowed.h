// PyTorch's kernels for the CPU, called with tensors of this device: those that compute by other ops alone.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace torch_tpu {

using Handles = std::vector<c10::RegistrationHandleRAII>;

// Registers the op's kernel for the key `from` under the key `to`.
void borrow(Handles& handles, const c10::OperatorHandle& op, c10::DispatchKey from, c10::DispatchKey to);

// The ATen ops that have a kernel for `from` and none for `to`.
std::vector<c10::OperatorHandle> borrowable(c10::DispatchKey from, c10::DispatchKey to);

}  // namespace torch_tpu
