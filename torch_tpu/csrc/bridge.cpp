// Where the core meets Python: plan misses, ops that need the data on the host, errors.
#include <ATen/ScalarOps.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include "kernel.h"
#include "metrics.h"
#include "modes.h"
#include "python_error.h"
#include "storage.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

py::object torch_dtype(c10::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

// An argument as Python's own object for it: the dispatcher holds dtypes, layouts and memory formats as ints.
py::object python_argument(const c10::IValue& value, const c10::Argument& declared) {
  if (value.isInt()) {
    auto type = declared.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    PyObject* object = nullptr;
    if (type->kind() == c10::TypeKind::ScalarTypeType) return torch_dtype(value.toScalarType());
    if (type->kind() == c10::TypeKind::LayoutType)
      object = reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout()));
    if (type->kind() == c10::TypeKind::MemoryFormatType)
      object = torch::utils::getTHPMemoryFormat(value.toMemoryFormat());
    if (object != nullptr) return py::reinterpret_borrow<py::object>(object);
  }
  return torch::jit::toPyObject(value);
}

const py::module_& miss() {
  static auto* module = new py::module_(py::module_::import("torch_tpu.eager.miss"));
  return *module;
}

// Shows a call to Python: tensors and run-time numbers as leaves, everything else as it is.
class Tree {
 public:
  Tree(Call& call) : call_(call), leaves_(call.leaves()) {}

  py::list arguments() {
    py::list result;
    const auto& declared = call_.entry.schema.arguments();
    for (size_t i = 0; i < declared.size(); ++i) result.append(convert(call_.argument(i), declared[i]));
    return result;
  }

 private:
  py::object convert(const c10::IValue& value, const c10::Argument& declared) {
    if (value.isList() && !value.isIntList() && !value.isBoolList() && !value.isDoubleList()) {
      py::list items;
      for (const auto& item : value.toListRef()) items.append(convert(item, declared));
      return items;
    }
    const Leaf& leaf = leaves_[next_++];
    if (leaf.kind == Leaf::Kind::Tensor) return tensor(leaf, value.toTensor());
    if (leaf.kind == Leaf::Kind::Number) return number(leaf, value);
    if (value.isTensor()) return py::none();  // an undefined tensor
    return python_argument(value, declared);
  }

  py::object tensor(const Leaf& leaf, const at::Tensor& tensor) {
    const Layout* layout = call_.slots[leaf.slot]->layout.load();
    return miss().attr("TensorLeaf")(py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)), leaf.slot,
                                     leaf.index, torch_dtype(layout->dtype),
                                     py::tuple(py::cast(layout->sizes)),
                                     static_cast<int64_t>(call_.slots[leaf.slot]->nbytes));
  }

  py::object number(const Leaf& leaf, const c10::IValue& value) {
    const bool host_tensor = value.isTensor();
    const auto object = torch::jit::toPyObject(host_tensor ? c10::IValue(value.toTensor().item()) : value);
    return miss().attr("NumberLeaf")(object, std::string(1, leaf.number), leaf.index,
                                     host_tensor && !leaf.wrapped ? torch_dtype(leaf.dtype) : py::none(),
                                     host_tensor);
  }

  Call& call_;
  std::vector<Leaf> leaves_;
  size_t next_ = 0;
};

py::list plain_arguments(const OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  py::list result;
  const auto& declared = entry.schema.arguments();
  for (size_t i = 0; i < declared.size(); ++i) result.append(python_argument(arguments[i], declared[i]));
  return result;
}

py::list plain_arguments(Call& call) { return plain_arguments(call.entry, call.arguments()); }

template <class F>
auto python(Call* call, F f) {
  try {
    return f();
  } catch (py::error_already_set& error) {
    error.restore();
  }
  raise_python_error(call);
}

}  // namespace

void raise_python_error(Call* call) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  if (call != nullptr && value != nullptr) {
    try {
      miss().attr("explain")(py::handle(value), call->entry.name, plain_arguments(*call),
                             eager_mode() == EagerMode::Debug);
    } catch (py::error_already_set&) {  // the first error matters, not one met in explaining it
    }
  }
  PyErr_Restore(type, value, trace);
  python_error error;
  error.persist();
  throw error;
}

std::unique_ptr<Plan> build_plan(Call& call, bool dynamic_offsets) {
  Gil gil;
  return python(&call, [&] {
    py::list offsets;
    for (uint32_t leaf : call.offset_leaves) offsets.append(leaf);
    const auto spec =
        miss().attr("build")(call.entry.name, Tree(call).arguments(), static_cast<int>(call.device),
                             dynamic_offsets ? py::object(offsets) : py::none());
    return parse_plan(spec.ptr());
  });
}

void run_host(Call& call, const Plan& plan) {
  Gil gil;
  std::vector<c10::IValue> results;
  python(&call, [&] {
    const auto returns = call.entry.schema.returns();
    py::object result = py::reinterpret_borrow<py::object>(plan.function)(*py::tuple(plain_arguments(call)));
    if (returns.size() == 1) {
      results.push_back(torch::jit::toIValue(result, returns[0].real_type()));
    } else {
      for (size_t i = 0; i < returns.size(); ++i) {
        results.push_back(torch::jit::toIValue(result[py::int_(i)], returns[i].real_type()));
      }
    }
    return true;
  });
  torch::jit::drop(call.stack, call.entry.schema.arguments().size());
  for (auto& result : results) call.stack.push_back(std::move(result));
}

void ask_numbers(Call& call) {
  Gil gil;
  python(&call, [&] { return miss().attr("check_numbers")(call.entry.name, Tree(call).arguments()), true; });
}

void announce_fallback(OpEntry& entry, c10::ArrayRef<c10::IValue> arguments) {
  Gil gil;
  if (fallback_policy() != Fallback::Allow) {
    python(nullptr, [&] {
      miss().attr("announce_fallback")(entry.name, plain_arguments(entry, arguments),
                                       fallback_policy() == Fallback::Error, entry.fallbacks.load() == 0);
      return true;
    });
    entry.fallbacks += 1;
  }
  count_fallback(entry.name.c_str());
}

void bind_kernels(py::module_& m) {
  m.def("dense_layout",
        [](const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) -> py::object {
          const Layout* layout = dense_layout(c10::ScalarType::Byte, sizes, strides);
          return layout == nullptr ? py::none() : py::object(py::tuple(py::cast(layout->sizes)));
        });
  m.def("wrapped_number", [](const py::object& value) {
    auto tensor = c10::scalar_to_tensor(torch::jit::toIValue(value, c10::NumberType::get()).toScalar());
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
    return tensor;
  });
}

}  // namespace torch_tpu
