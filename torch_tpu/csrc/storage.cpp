#include "storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

namespace torch_tpu {
namespace {

const Layout* flat_layout(size_t nbytes, c10::ScalarType dtype) {
  const size_t itemsize = c10::elementSize(dtype);
  if (nbytes % itemsize == 0) return intern_layout(dtype, {static_cast<int64_t>(nbytes / itemsize)});
  return intern_layout(c10::ScalarType::Byte, {static_cast<int64_t>(nbytes)});
}

}  // namespace

at::Tensor make_tensor(const FreshTensor& meta, c10::DeviceIndex device) {
  const c10::Device where(kTpu, device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(meta.layout->nbytes),
      make_data(device, meta.layout->nbytes, meta.layout), c10::GetAllocator(kTpu), /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                         c10::scalarTypeToTypeMeta(meta.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  if (meta.sizes.size() != 1 || meta.sizes[0] != 0) {
    impl->set_sizes_and_strides(meta.sizes, meta.strides, meta.offset);
  }
  return tensor;
}

StorageRecord& usable_record(const at::Tensor& tensor) {
  const auto& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  auto* record = record_of(storage);
  if (C10_UNLIKELY(record == nullptr)) {
    TORCH_CHECK(storage.nbytes() == 0 || storage.data() == nullptr,
                "expected a tpu tensor to be on a storage that the tpu device allocated, got foreign memory");
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        make_data(tensor.device().index(), storage.nbytes(), nullptr));
    record = record_of(storage);
  }
  if (C10_UNLIKELY(record->layout.load(std::memory_order_relaxed) == nullptr)) {
    const Layout* none = nullptr;
    record->layout.compare_exchange_strong(none, flat_layout(record->nbytes, tensor.scalar_type()));
  }
  return *record;
}

}  // namespace torch_tpu
