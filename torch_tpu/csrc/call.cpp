#include "call.h"

#include <ATen/core/List.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "modes.h"
#include "storage.h"

namespace torch_tpu {
namespace {

// Tags of key words; each starts one argument's part of the key.
enum Tag : uint64_t {
  kNone = 1,
  kTensor,
  kIdentity,
  kInt,
  kUnsigned,
  kDouble,
  kBool,
  kNumber,
  kDefault,
  kList,
  kString,
  kComplex,
  kDevice,
  kGenerator,
  kHostNumber
};

constexpr uint64_t tagged(Tag tag, uint64_t payload = 0) { return static_cast<uint64_t>(tag) | payload << 8; }

uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// What steers every program: the device, the default dtype (integers promote to it) and the precision of
// matmuls.
uint64_t context_word(c10::DeviceIndex device) {
  return static_cast<uint64_t>(device) | static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 8 |
         static_cast<uint64_t>(matmul_precision()) << 16;
}

bool is_scalar_type(const c10::TypePtr& type) {
  const auto kind = type->kind();
  if (kind == c10::TypeKind::OptionalType)
    return is_scalar_type(type->castRaw<c10::OptionalType>()->getElementType());
  if (kind == c10::TypeKind::ListType)
    return is_scalar_type(type->castRaw<c10::ListType>()->getElementType());
  return kind == c10::TypeKind::NumberType;
}

// Leaf::number of a number.
char kind_of(const c10::Scalar& number) {
  if (number.isBoolean()) return 'b';
  if (number.type() == c10::ScalarType::UInt64) return 'u';  // larger than any int64
  if (number.isIntegral(false)) return 'i';
  return number.isFloatingPoint() ? 'f' : 'c';
}

bool same_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble() && b.isDouble()) return a.toDouble() == b.toDouble();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  return false;
}

}  // namespace

Call::Call(OpEntry& entry, torch::jit::Stack& stack)
    : entry(entry), stack(stack), first(stack.size() - entry.schema.arguments().size()) {
  find_device();
  const bool bounded = index_checks() && entry.policy().bounded;
  key.push_back(context_word(device) | static_cast<uint64_t>(bounded) << 24);
  walk();
}

void Call::walk() {
  const size_t count = entry.schema.arguments().size();
  for (uint32_t i = 0; i < count; ++i) add(argument(i), i);
}

std::vector<Leaf> Call::leaves() {
  std::vector<Leaf> result;
  Call again(*this);  // a copy, so that the key and the words of this call stay as they are
  again.leaves_ = &result;
  again.words.clear();
  again.tensors_ = 0;
  again.walk();
  return result;
}

// The device of the first `tpu` tensor, else of the device argument, else the current one.
void Call::find_device() {
  const auto& arguments = entry.schema.arguments();
  const bool moves_host = entry.policy().moves_host;
  std::optional<c10::Device> wanted;
  for (size_t i = 0; i < arguments.size() && device < 0; ++i) {
    const auto& value = argument(i);
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined() && tensor.device().type() == kTpu) device = tensor.device().index();
    } else if (value.isTensorList()) {
      for (const auto& item : value.toListRef()) {
        const auto& tensor = item.toTensor();
        if (tensor.defined() && tensor.device().type() == kTpu && device < 0)
          device = tensor.device().index();
      }
    } else if (value.isDevice()) {
      wanted = value.toDevice();
    }
  }
  if (device < 0) {
    if (wanted && wanted->has_index()) {
      device = wanted->index();
    } else {
      device = c10::impl::VirtualGuardImpl(kTpu).getDevice().index();
    }
  }
  if (moves_host) move_host_tensors(entry, stack, first, device);
}

void Call::add(const c10::IValue& value, uint32_t argument) {
  if (value.isTensor()) {
    add_tensor(value.toTensor(), argument);
  } else if (value.isNone()) {
    key.push_back(tagged(kNone));
    note({Leaf::Kind::Static, argument});
  } else if (value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble() ||
             value.isUnsigned()) {
    add_number(value, argument);
  } else if (value.isList()) {
    add_list(value, argument);
  } else {
    add_other(value, argument);
  }
}

void Call::add_number(const c10::IValue& value, uint32_t argument) {
  const auto& declared = entry.schema.arguments()[argument];
  const Policy& policy = entry.policy();
  const bool data = value.isDouble() || value.isComplexDouble() || is_scalar_type(declared.type()) ||
                    (value.isInt() && policy.dynamic_int[argument]);
  if (!data || policy.static_number[argument]) {
    note({Leaf::Kind::Static, argument});
    if (value.isInt()) {
      key.push_back(tagged(kInt));
      key.push_back(static_cast<uint64_t>(value.toInt()));
    } else if (value.isUnsigned()) {
      key.push_back(tagged(kUnsigned));
      key.push_back(value.toUInt());
    } else if (value.isBool()) {
      key.push_back(tagged(kBool, value.toBool()));
    } else if (value.isDouble()) {
      key.push_back(tagged(kDouble));
      key.push_back(bits_of(value.toDouble()));
    } else {
      key.push_back(tagged(kComplex));
      key.push_back(bits_of(value.toComplexDouble().real()));
      key.push_back(bits_of(value.toComplexDouble().imag()));
    }
    return;
  }
  if (declared.default_value() && same_number(value, *declared.default_value())) {
    key.push_back(tagged(kDefault));
    note({Leaf::Kind::Static, argument});
    return;
  }
  const auto number = value.toScalar();
  const char kind = kind_of(number);
  key.push_back(tagged(kNumber, static_cast<uint64_t>(kind)));
  note({Leaf::Kind::Number, argument, 0, static_cast<uint32_t>(words.size()), kind});
  pack(number);
}

void Call::pack(const c10::Scalar& number) {
  const auto push = [this](uint64_t bits) {
    words.push_back(static_cast<uint32_t>(bits));
    words.push_back(static_cast<uint32_t>(bits >> 32));
  };
  if (number.isBoolean()) {
    push(number.to<bool>());
  } else if (number.isIntegral(false)) {
    push(number.isUnsigned() ? number.to<uint64_t>() : static_cast<uint64_t>(number.to<int64_t>()));
  } else if (number.isFloatingPoint()) {
    push(bits_of(number.to<double>()));
  } else {
    const auto value = number.to<c10::complex<double>>();
    push(bits_of(value.real()));
    push(bits_of(value.imag()));
  }
}

// A 0-dim CPU tensor is a run-time number: a Python number where it is wrapped, else of its own dtype.
void Call::add_host_number(const at::Tensor& tensor, uint32_t argument) {
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  const auto number = at::_local_scalar_dense(tensor);
  const char kind = kind_of(number);
  const auto dtype = tensor.scalar_type();
  key.push_back(tagged(kHostNumber, static_cast<uint64_t>(kind) | static_cast<uint64_t>(dtype) << 8 |
                                        static_cast<uint64_t>(wrapped) << 24));
  note({Leaf::Kind::Number, argument, 0, static_cast<uint32_t>(words.size()), kind, wrapped, dtype});
  pack(number);
}

void Call::add_tensor(const at::Tensor& tensor, uint32_t argument) {
  if (!tensor.defined()) {
    key.push_back(tagged(kNone));
    note({Leaf::Kind::Static, argument});
    return;
  }
  if (tensor.device().type() != kTpu || tensor.device().index() != device) {
    if (!tensor.device().is_cpu() || tensor.dim() != 0 || entry.written[argument])
      mixed_devices(tensor, argument);
    add_host_number(tensor, argument);
    return;
  }
  const uint32_t slot = slot_of(tensor);
  const Layout* layout = slots[slot]->layout.load(std::memory_order_relaxed);
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto sizes = impl->sizes();
  const auto dtype = tensor.scalar_type();
  const int64_t offset = impl->storage_offset();
  const uint64_t bits = static_cast<uint64_t>(tensor.is_conj()) | static_cast<uint64_t>(tensor.is_neg()) << 1;
  const bool identity = offset == 0 && bits == 0 && dtype == layout->dtype && impl->is_contiguous() &&
                        sizes == c10::IntArrayRef(layout->sizes);
  note({Leaf::Kind::Tensor, argument, slot, tensors_});
  key.push_back(tagged(identity ? kIdentity : kTensor, static_cast<uint64_t>(slot) |
                                                           static_cast<uint64_t>(dtype) << 24 | bits << 32 |
                                                           static_cast<uint64_t>(sizes.size()) << 36));
  key.push_back(reinterpret_cast<uint64_t>(layout));
  if (!identity) {
    offset_words.push_back(key.size());
    offsets.push_back(offset);
    offset_leaves.push_back(tensors_);
    key.push_back(static_cast<uint64_t>(offset));
    for (int64_t size : sizes) key.push_back(static_cast<uint64_t>(size));
    for (int64_t stride : impl->strides()) key.push_back(static_cast<uint64_t>(stride));
  }
  ++tensors_;
}

uint32_t Call::slot_of(const at::Tensor& tensor) {
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (size_t i = storages.size(); i-- > 0;) {  // the newest first: lists repeat little
    if (storages[i] == storage) return static_cast<uint32_t>(i);
    if (storages.size() > 64 && storages.size() - i > 64) break;
  }
  if (storages.size() > 64) {
    if (many_.empty()) {
      for (size_t i = 0; i < storages.size(); ++i) many_.emplace(storages[i], static_cast<uint32_t>(i));
    }
    auto found = many_.find(storage);
    if (found != many_.end()) return found->second;
    many_.emplace(storage, static_cast<uint32_t>(storages.size()));
  }
  storages.push_back(storage);
  slots.push_back(&usable_record(tensor));
  return static_cast<uint32_t>(storages.size() - 1);
}

void Call::add_list(const c10::IValue& value, uint32_t argument) {
  if (value.isIntList() || value.isBoolList()) {
    note({Leaf::Kind::Static, argument});
    const bool ints = value.isIntList();
    const auto items = ints ? value.toIntVector() : std::vector<int64_t>();
    if (ints) {
      key.push_back(tagged(kList, items.size()));
      for (int64_t item : items) key.push_back(static_cast<uint64_t>(item));
    } else {
      const auto bools = value.toBoolList();
      key.push_back(tagged(kList, bools.size() << 1 | 1));
      for (bool item : bools) key.push_back(item);
    }
    return;
  }
  if (value.isDoubleList()) {  // scales and the like: they steer shapes
    note({Leaf::Kind::Static, argument});
    const auto items = value.toDoubleVector();
    key.push_back(tagged(kList, items.size() << 2 | 2));
    for (double item : items) key.push_back(bits_of(item));
    return;
  }
  const auto items = value.toListRef();
  key.push_back(tagged(kList, items.size()));
  for (const auto& item : items) add(item, argument);
}

void Call::add_other(const c10::IValue& value, uint32_t argument) {
  note({Leaf::Kind::Static, argument});
  if (value.isString()) {
    const auto& text = value.toStringRef();
    key.push_back(tagged(kString, text.size()));
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      key.push_back(word);
    }
  } else if (value.isDevice()) {
    key.push_back(tagged(kDevice, static_cast<uint64_t>(value.toDevice().type())));
  } else if (value.isGenerator()) {
    generator = value.toGenerator();
    key.push_back(tagged(kGenerator));
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, entry.name, "(): argument '",
                                entry.schema.arguments()[argument].name(), "' of type ", value.tagKind(),
                                " is not supported on device tpu");
  }
}

void Call::mixed_devices(const at::Tensor& tensor, uint32_t argument) const {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, tpu:",
              static_cast<int>(device), " and ", tensor.device(), "! (when checking argument for argument ",
              entry.schema.arguments()[argument].name(), " in method ", entry.name, ")");
}

}  // namespace torch_tpu
