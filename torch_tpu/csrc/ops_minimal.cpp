// Allocation and metadata ops: no program runs here. Views are PyTorch's own kernels.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>

#include "storage.h"

namespace torch_tpu {
namespace {

c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  if (device && device->has_index()) {
    const auto count = c10::impl::VirtualGuardImpl(kTpu).deviceCount();
    TORCH_CHECK(device->index() < count, "tpu: invalid device ordinal ", static_cast<int>(device->index()),
                ": there ", count == 1 ? "is " : "are ", static_cast<int>(count),
                count == 1 ? " device" : " devices");
    return device->index();
  }
  return c10::impl::VirtualGuardImpl(kTpu).getDevice().index();
}

void warn_of_complex_half(c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::ComplexHalf) {
    TORCH_WARN_ONCE("ComplexHalf support is experimental and many operators don't support it yet.");
  }
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::Layout::Strided,
                              "empty(): expected layout to be torch.strided on device tpu, got ", *layout);
  TORCH_CHECK(!pin_memory || !*pin_memory, "Only dense CPU tensors can be pinned");
}

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory,
                               std::optional<c10::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  warn_of_complex_half(type);
  const auto format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type));  // raises on overflow
  FreshTensor meta{type, sizes.vec(), {}, 0, nullptr};
  if (format == c10::MemoryFormat::ChannelsLast) {
    TORCH_CHECK(sizes.size() == 4, "required rank 4 tensor to use channels_last format");
    meta.strides = c10::get_channels_last_strides_2d(sizes);
  } else if (format == c10::MemoryFormat::ChannelsLast3d) {
    TORCH_CHECK(sizes.size() == 5, "required rank 5 tensor to use channels_last_3d format");
    meta.strides = c10::get_channels_last_strides_3d(sizes);
  } else {
    TORCH_CHECK(format == c10::MemoryFormat::Contiguous, "unsupported memory format option ", format);
    const auto strides = c10::TensorType::contiguousStridesOf(sizes);
    meta.strides.assign(strides.begin(), strides.end());
  }
  meta.layout = dense_layout(type, meta.sizes, meta.strides);
  return make_tensor(meta, index_of(device));
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  const auto type = dtype.value_or(c10::get_default_dtype_as_scalartype());
  warn_of_complex_half(type);
  const auto nbytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(type));
  FreshTensor meta{type, sizes.vec(), strides.vec(), 0, dense_layout(type, sizes, strides)};
  if (meta.layout == nullptr)
    meta.layout = intern_layout(type, {static_cast<int64_t>(nbytes / c10::elementSize(type))});
  return make_tensor(meta, index_of(device));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes,
                          std::optional<c10::MemoryFormat> memory_format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (impl->sizes() != sizes || memory_format) {
    at::detail::check_size_nonnegative(sizes);
    const size_t itemsize = self.itemsize();
    const size_t needed = at::detail::computeStorageNbytesContiguous(sizes, itemsize, self.storage_offset());
    int64_t numel = 1;
    for (int64_t size : sizes) numel *= size;
    if (numel > 0 && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
    impl->set_sizes_contiguous(sizes);
    if (memory_format) {
      TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format", *memory_format);
      impl->empty_tensor_restride(*memory_format);
    }
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source, int64_t offset, c10::IntArrayRef sizes,
                        c10::IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(source), offset, sizes, strides,
                              /*check_offset_in_bounds=*/false);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  std::vector<int64_t> dense;
  if (strides.data() == nullptr) {
    const auto computed = c10::TensorType::contiguousStridesOf(sizes);
    dense.assign(computed.begin(), computed.end());
    strides = dense;
  }
  impl->set_sizes_and_strides(sizes, strides, offset);
  const auto needed = at::detail::computeStorageNbytes(sizes, strides, self.itemsize(), offset);
  if (self.numel() > 0 && needed > self.storage().nbytes()) resize_storage(self.storage(), needed);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::GetAllocator(kTpu), true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

// What `.data =` and Module.to ask: dense tensors of the CPU and of tpu may take each other's place, as on
// CUDA, so that a parameter stays the same object, and tied ones stay tied.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto dense = [](const at::Tensor& tensor) {
    return tensor.layout() == c10::Layout::Strided && (tensor.is_cpu() || tensor.device().type() == kTpu);
  };
  return dense(self) && dense(from);
}

}  // namespace

const Layout* dense_layout(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  // Dims in memory order; one of size 1 has no place of its own and keeps its position.
  std::vector<size_t> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return intern_layout(dtype, sizes);
    if (sizes[i] != 1) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  int64_t expected = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (strides[order[i]] != expected) return nullptr;
    expected *= sizes[order[i]];
  }
  auto physical = sizes.vec();
  size_t next = 0;
  for (auto& size : physical) {
    if (size != 1) size = sizes[order[next++]];
  }
  return intern_layout(dtype, physical);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("resize_", resize_);
  m.impl("set_", set_empty);
  m.impl("set_.source_Storage", set_source_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_source_tensor);
}

}  // namespace torch_tpu
