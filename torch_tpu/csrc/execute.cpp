// A plan hit: inputs in, one call of the compiled program, results out.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>

#include "events.h"
#include "generator.h"
#include "kernel.h"
#include "metrics.h"
#include "modes.h"
#include "packed.h"
#include "profiler.h"
#include "python_error.h"
#include "storage.h"
#include "traps.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

using Fresh = c10::SmallVector<at::Tensor, 4>;

PyObject* input_array(Call& call, const Plan& plan, size_t i) {
  auto& record = *call.slots[plan.inputs[i]];
  if (!record.value) record.value = zero_value(record, call.entry.name.c_str());
  if (plan.donated[i] && record.value.use_count() > 1) record.value = copied_value(*record.value);
  return record.value->array;
}

// The run-time data of the program in the order of Plan: random state, offsets, numbers.
Packed packed_words(Call& call, const Plan& plan) {
  if (!plan.packed) return {};
  if (!plan.random && !plan.offsets) return packed_array(call.words, call.device, /*may_repeat=*/true);
  c10::SmallVector<uint32_t, 32> words;
  const auto push = [&words](uint64_t bits) {
    words.push_back(static_cast<uint32_t>(bits));
    words.push_back(static_cast<uint32_t>(bits >> 32));
  };
  if (plan.random) {
    const auto [seed, offset] = next_philox(call.generator, call.device);
    push(seed);
    push(offset);
  }
  if (plan.offsets) {
    for (int64_t offset : call.offsets) push(static_cast<uint64_t>(offset));
  }
  words.append(call.words.begin(), call.words.end());
  return packed_array(words, call.device, /*may_repeat=*/!plan.random);
}

// Steals the reference `array`.
void store(Call& call, const Plan& plan, Fresh& fresh, size_t result, PyObject* array,
           std::vector<ValuePtr>* made) {
  const int32_t target = plan.results[result];
  StorageRecord& record =
      target >= 0 ? *record_of(fresh[target].unsafeGetTensorImpl()->unsafe_storage()) : *call.slots[~target];
  record.value = c10::make_intrusive<Value>(array, record.layout.load(std::memory_order_relaxed), call.device,
                                            call.entry.name.c_str());
  if (made != nullptr) made->push_back(record.value);
}

// Calls the program with `arguments` (one free word lies before them): new references, or empty with a
// Python error set. Another thread may drop the program meanwhile.
c10::SmallVector<PyObject*, 4> results_of(const Plan& plan, PyObject** arguments, size_t count,
                                          bool on_device) {
  c10::SmallVector<PyObject*, 4> results;
  const auto call = py::reinterpret_borrow<py::object>(plan.program->call);
  const auto execute = py::reinterpret_borrow<py::object>(plan.program->execute);
  const auto handlers = py::reinterpret_borrow<py::object>(plan.program->handlers);
  if (!execute || !on_device) {
    PyObject* result =
        PyObject_Vectorcall(call.ptr(), arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
    if (result == nullptr) return results;
    const size_t count = plan.results.size() + (plan.bounds.empty() ? 0 : 1);
    if (count == 1) {
      results.push_back(result);
      return results;
    }
    for (size_t i = 0; i < count; ++i) {
      results.push_back(PySequence_GetItem(result, static_cast<Py_ssize_t>(i)));
    }
    Py_DECREF(result);
    return results;
  }
  static PyObject* consume = PyUnicode_InternFromString("consume_with_handlers");
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(count));
  if (list == nullptr) return results;
  for (size_t i = 0; i < count; ++i) {
    Py_INCREF(arguments[i]);
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), arguments[i]);
  }
  PyObject* executed = PyObject_CallOneArg(execute.ptr(), list);
  Py_DECREF(list);
  if (executed == nullptr) return results;
  PyObject* consume_arguments[] = {executed, handlers.ptr()};
  PyObject* arrays = PyObject_VectorcallMethod(consume, consume_arguments, 2, nullptr);
  Py_DECREF(executed);
  if (arrays == nullptr) return results;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arrays); ++i) {
    results.push_back(PyList_GET_ITEM(arrays, i));
    Py_INCREF(results.back());
  }
  Py_DECREF(arrays);
  return results;
}

// Debug Eager: waits for the results; errors are raised as this call's.
void finish(Call& call, const std::vector<ValuePtr>& made) {
  wait_for(made);
  try {
    raise_trapped(call.device, /*all=*/true);
    return;
  } catch (const c10::IndexError& error) {
    PyErr_SetString(PyExc_IndexError, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what_without_backtrace());
  }
  raise_python_error(&call);
}

// False where the program was dropped.
bool run_program(Call& call, const Plan& plan, Fresh& fresh) {
  const NoGil no_gil;
  std::lock_guard<std::recursive_mutex> values(values_mutex(call.device));
  Gil gil;
  drain_released();
  if (C10_UNLIKELY(plan.program->call == nullptr)) return false;
  c10::SmallVector<PyObject*, 17> arguments;
  arguments.push_back(nullptr);  // room that the vectorcall protocol may use
  for (size_t i = 0; i < plan.inputs.size(); ++i) arguments.push_back(input_array(call, plan, i));
  const Packed packed = packed_words(call, plan);
  if (plan.packed) arguments.push_back(packed.array.ptr());
  const int64_t start = profiling_start();
  const auto results = results_of(plan, arguments.data() + 1, arguments.size() - 1, packed.on_device);
  if (results.empty()) raise_python_error(&call);
  if (C10_UNLIKELY(start != 0)) profile_program(call.entry.name, call.device, start, results);
  metrics().programs_run.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (plan.donated[i]) call.slots[plan.inputs[i]]->value->settled = true;
  }
  std::vector<ValuePtr> made;
  auto* record_made = eager_mode() == EagerMode::Debug ? &made : nullptr;
  for (size_t i = 0; i < plan.results.size(); ++i) store(call, plan, fresh, i, results[i], record_made);
  if (!plan.bounds.empty()) add_trap(call.device, results.back(), plan, call.entry.name.c_str());
  if (record_made != nullptr) finish(call, made);
  return true;
}

c10::IValue returned(Call& call, const Plan& plan, Fresh& fresh, size_t& next) {
  const Return& item = plan.returns[next++];
  switch (item.kind) {
    case Return::Kind::Fresh:
      return fresh[item.index];
    case Return::Kind::Argument:
      return call.argument(item.index);
    case Return::Kind::None:
      return at::Tensor();
    case Return::Kind::Integer:
      return item.index;
    case Return::Kind::List:
      break;
  }
  c10::List<at::Tensor> list;
  list.reserve(static_cast<size_t>(item.index));
  for (int64_t i = 0; i < item.index; ++i) list.push_back(returned(call, plan, fresh, next).toTensor());
  return list;
}

// In-place foreach ops are outside of autograd's own counting of versions.
void count_versions(Call& call) {
  if (!call.entry.foreach) return;
  for (uint32_t i = 0; i < call.entry.written.size(); ++i) {
    if (!call.entry.written[i] || !call.argument(i).isTensorList()) continue;
    for (const auto& item : call.argument(i).toListRef()) {
      if (!item.toTensor().is_inference()) item.toTensor().unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace

void execute(Call& call, const Plan& plan) {
  check_numbers(call, plan);
  for (const auto& resize : plan.resizes) {
    const auto& out = call.argument(resize.argument).toTensor();
    at::native::resize_output(out, resize.sizes);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(resize.sizes, resize.strides, out.storage_offset());
  }
  if (!plan.resizes.empty()) {  // the outputs have other shapes now: that is another key
    const auto& schema = call.entry.schema;
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(schema.name().c_str(), schema.overload_name().c_str());
    return run_op(call.entry, op, call.stack);
  }
  Fresh fresh;
  for (const auto& meta : plan.fresh) fresh.push_back(make_tensor(meta, call.device));
  if (!plan.results.empty()) {
    while (!run_program(call, plan, fresh)) reload(call, plan);
  }
  count_versions(call);
  c10::SmallVector<c10::IValue, 4> results;
  for (size_t next = 0; next < plan.returns.size();) results.push_back(returned(call, plan, fresh, next));
  torch::jit::drop(call.stack, call.entry.schema.arguments().size());
  for (auto& result : results) call.stack.push_back(std::move(result));
}

}  // namespace torch_tpu
