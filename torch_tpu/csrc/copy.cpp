// Copies: between devices and the host, and on one device.
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include "events.h"
#include "kernel.h"
#include "metrics.h"
#include "packed.h"
#include "python_error.h"
#include "storage.h"
#include "traps.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

bool is_tpu(const at::Tensor& tensor) { return tensor.device().type() == kTpu; }

// True when the tensor is its whole storage, in the order of the layout.
bool is_whole(const at::Tensor& tensor, const Layout* layout) {
  return tensor.storage_offset() == 0 && tensor.scalar_type() == layout->dtype && !tensor.is_conj() &&
         !tensor.is_neg() && dense_layout(layout->dtype, tensor.sizes(), tensor.strides()) == layout;
}

// dst takes the Value of src itself: Values never change, so that a copy costs nothing.
bool share_value(const at::Tensor& dst, const at::Tensor& src) {
  auto& to = usable_record(dst);
  auto& from = usable_record(src);
  const Layout* layout = from.layout.load();
  if (to.layout.load() != layout || dst.sizes() != src.sizes() || dst.strides() != src.strides() ||
      !is_whole(src, layout) || !is_whole(dst, layout)) {
    return false;
  }
  const NoGil no_gil;
  std::lock_guard<std::recursive_mutex> values(values_mutex(dst.device().index()));
  Gil gil;
  to.value = from.value;
  metrics().values_shared += 1;
  return true;
}

// The dtype whose programs move elements of `dtype` as they are, where XLA knows no such dtype.
std::optional<c10::ScalarType> raw_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::ComplexHalf:
      return c10::ScalarType::Int;
    case c10::ScalarType::Bits16:
      return c10::ScalarType::Short;
    case c10::ScalarType::Float4_e2m1fn_x2:
    case c10::ScalarType::Bits8:
    case c10::ScalarType::Bits1x8:
    case c10::ScalarType::Bits2x4:
    case c10::ScalarType::Bits4x2:
      return c10::ScalarType::Byte;
    default:
      return std::nullopt;
  }
}

void copy_on_device(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (is_tpu(src) && share_value(dst, src)) return;
  const auto raw = raw_dtype(dst.scalar_type());
  if (raw && src.scalar_type() == dst.scalar_type() && !src.is_conj() && !dst.is_conj() && !src.is_neg() &&
      !dst.is_neg()) {
    return copy_on_device(dst.view(*raw), src.view(*raw), non_blocking);
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  static auto& entry = entry_of(op);
  torch::jit::Stack stack{dst, src, non_blocking};
  run_op(entry, op, stack);
}

// A tensor on `device` around a ready array that holds its elements in order.
at::Tensor wrap_array(py::object array, c10::ScalarType dtype, c10::IntArrayRef sizes,
                      c10::DeviceIndex device) {
  const auto strides = c10::TensorType::contiguousStridesOf(sizes);
  auto tensor = make_tensor(
      {dtype, sizes.vec(), {strides.begin(), strides.end()}, 0, intern_layout(dtype, sizes)}, device);
  auto* record = record_of(tensor.storage());
  record->value =
      c10::make_intrusive<Value>(array.release().ptr(), record->layout.load(), device, "aten::copy_");
  return tensor;
}

constexpr int64_t kNumpyDims = 64;  // arrays have no more dimensions; tensors may

at::Tensor from_host(const at::Tensor& source, c10::DeviceIndex device) {
  if (source.dim() > kNumpyDims) return from_host(source.reshape(-1), device).view(source.sizes());
  Gil gil;
  drain_released();
  metrics().bytes_to_device += source.nbytes();
  try {
    auto wrapped = py::reinterpret_steal<py::object>(THPVariable_Wrap(source));
    return wrap_array(transfer("to_device")(wrapped, static_cast<int>(device)), source.scalar_type(),
                      source.sizes(), device);
  } catch (py::error_already_set& error) {
    error.restore();
  }
  raise_python_error(nullptr);
}

at::Tensor from_other_device(const at::Tensor& source, c10::DeviceIndex device) {
  const auto& record = usable_record(source);
  at::Tensor whole = source;
  if (!source.is_contiguous() || !is_whole(source, record.layout.load()))
    whole = source.clone(at::MemoryFormat::Contiguous);
  auto& moved = usable_record(whole);
  Gil gil;
  if (!moved.value) moved.value = zero_value(moved, "aten::copy_");
  try {
    return wrap_array(transfer("copy_to")(py::handle(moved.value->array), static_cast<int>(device)),
                      whole.scalar_type(), whole.sizes(), device);
  } catch (py::error_already_set& error) {
    error.restore();
  }
  raise_python_error(nullptr);
}

// The Value's memory as the host sees it, once it is computed.
struct HostView {
  ValuePtr value;  // not donated while it is held
  const char* address = nullptr;
  PyObject* keepalive = nullptr;
  HostView(const HostView&) = delete;
  explicit HostView(StorageRecord& record) {
    const NoGil no_gil;
    {
      std::lock_guard<std::recursive_mutex> values(values_mutex(record.device));
      Gil gil;
      value = record.value;
    }
    Gil gil;
    drain_released();
    count_synchronization();
    if (!value) return;
    if (!value->settled) wait_for({value});
    raise_trapped(record.device, /*all=*/false);
    try {
      const auto view =
          py::reinterpret_steal<py::tuple>(transfer("host_view")(py::handle(value->array)).release());
      address = reinterpret_cast<const char*>(view[0].cast<uintptr_t>());
      keepalive = py::object(view[1]).release().ptr();
      return;
    } catch (py::error_already_set& error) {
      error.restore();
    }
    raise_python_error(nullptr);
  }
  ~HostView() { release_later(keepalive); }
};

// The elements of a `tpu` tensor as a CPU tensor over the Value's own memory.
at::Tensor host_alias(const at::Tensor& source, const HostView& view) {
  void* data = const_cast<char*>(view.address) + source.storage_offset() * source.itemsize();
  auto alias = at::from_blob(data, source.sizes(), source.strides(), source.options().device(c10::kCPU));
  if (source.is_conj()) alias = alias._conj();
  if (source.is_neg()) alias = alias._neg_view();
  return alias;
}

void check_storage(const at::Tensor& source) {
  const size_t needed = at::detail::computeStorageNbytes(source.sizes(), source.strides(), source.itemsize(),
                                                         source.storage_offset());
  TORCH_CHECK(needed <= source.storage().nbytes(), "a tensor of shape ", source.sizes(),
              " requires a storage of ", needed, " bytes, but its storage has ", source.storage().nbytes(),
              ": it was resized (untyped_storage().resize_)");
}

void copy_to_host(const at::Tensor& dst, const at::Tensor& source) {
  check_storage(source);
  HostView view(usable_record(source));
  if (view.address == nullptr) return;  // never written
  metrics().bytes_from_device += source.nbytes();
  const bool half = source.scalar_type() == c10::ScalarType::ComplexHalf;
  if (half && source.is_conj() && source.is_neg()) {  // the CPU copies either, but not both
    dst.copy_(host_alias(source, view)._neg_view()).neg_();
    return;
  }
  dst.copy_(host_alias(source, view));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  if (self.sizes() == source.sizes() && self.numel() == 0) return self;
  if (!is_tpu(self)) {
    TORCH_CHECK(self.is_cpu(), "copy_(): copies from tpu go to the CPU or another tpu device, got ",
                self.device());
    const auto sized = source.sizes() == self.sizes() ? source : source.expand(self.sizes());
    copy_to_host(self, sized);
    return self;
  }
  if (source.is_complex() && !self.is_complex()) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  const auto device = self.device().index();
  const bool raw = raw_dtype(self.scalar_type()) || raw_dtype(source.scalar_type());
  if (raw && is_tpu(source) &&
      (source.scalar_type() != self.scalar_type() || source.is_conj() ||
       source.is_neg())) {  // the host converts
    const auto host = at::empty(source.sizes(), source.options().device(c10::kCPU));
    copy_to_host(host, source);
    return copy_(self, host, non_blocking);
  }
  if (is_tpu(source)) {
    copy_on_device(self, source.device().index() == device ? source : from_other_device(source, device),
                   non_blocking);
  } else if (source.is_cpu() && source.dim() == 0 && !raw) {
    copy_on_device(self, source, non_blocking);
  } else {
    TORCH_CHECK(source.is_cpu(), "copy_(): copies to tpu come from the CPU or another tpu device, got ",
                source.device());
    copy_on_device(self,
                   from_host(source.to(self.scalar_type()).contiguous().resolve_conj().resolve_neg(), device),
                   non_blocking);
  }
  return self;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  dst.copy_(self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  dst.copy_(self);
  return dst;
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  check_storage(self);
  HostView view(usable_record(self));
  metrics().bytes_from_device += self.itemsize();
  if (view.address == nullptr)
    return at::_local_scalar_dense(at::empty({}, self.options().device(c10::kCPU)).zero_());
  return at::_local_scalar_dense(host_alias(self, view));
}

}  // namespace

void move_host_tensors(OpEntry& entry, torch::jit::Stack& stack, size_t first, c10::DeviceIndex device) {
  const auto moved = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_cpu() && tensor.dim() > 0 ? tensor.to(c10::Device(kTpu, device))
                                                                   : tensor;
  };
  for (size_t i = first; i < stack.size(); ++i) {
    if (entry.written[i - first]) continue;
    if (stack[i].isList() && !stack[i].isTensorList()) {
      auto list = stack[i].toList();
      for (size_t k = 0; k < list.size(); ++k) {
        const c10::IValue item = list.get(k);
        if (item.isTensor()) list.set(k, moved(item.toTensor()));
      }
    }
  }
}

void resize_storage(const c10::Storage& storage, size_t nbytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  auto* old = record_of(storage);
  const auto device = storage.device().index();
  const Layout* old_layout = old == nullptr ? nullptr : old->layout.load();
  const auto dtype = old_layout == nullptr ? c10::ScalarType::Byte : old_layout->dtype;
  const size_t itemsize = c10::elementSize(dtype);
  const bool whole = nbytes % itemsize == 0;
  const Layout* layout = intern_layout(whole ? dtype : c10::ScalarType::Byte,
                                       {static_cast<int64_t>(whole ? nbytes / itemsize : nbytes)});
  auto data = make_data(device, nbytes, layout);
  if (old != nullptr && old->value && nbytes > 0 && old->nbytes > 0) {
    // The part that both have, copied as bytes through two tensors over the storages.
    const auto shared = static_cast<int64_t>(std::min(nbytes, old->nbytes));
    c10::Storage next(c10::Storage::use_byte_size_t(), static_cast<int64_t>(nbytes), std::move(data),
                      c10::GetAllocator(kTpu), true);
    const auto options = at::TensorOptions().dtype(c10::ScalarType::Byte).device(c10::Device(kTpu, device));
    const auto to = at::empty({0}, options).set_(next, 0, {shared}, {1});
    const auto from = at::empty({0}, options).set_(storage, 0, {shared}, {1});
    to.copy_(from);
    data = next.set_data_ptr(c10::DataPtr(nullptr, c10::Device(kTpu, device)));
  }
  impl->set_data_ptr_noswap(std::move(data));
  impl->set_nbytes(nbytes);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
}

}  // namespace torch_tpu
