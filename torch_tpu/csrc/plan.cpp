#include "plan.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Dtype.h>

#include <deque>

#include "metrics.h"
#include "python_error.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

std::string full_name(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

Plan::Kind kind_of(const std::string& kind) {
  if (kind == "program") return Plan::Kind::Program;
  if (kind == "host") return Plan::Kind::Host;
  return Plan::Kind::Fallback;
}

FreshTensor parse_fresh(const py::handle& item) {
  const auto fields = py::reinterpret_borrow<py::tuple>(item);
  const auto dtype = reinterpret_cast<THPDtype*>(fields[0].ptr())->scalar_type;
  return {dtype, fields[1].cast<std::vector<int64_t>>(), fields[2].cast<std::vector<int64_t>>(),
          fields[3].cast<int64_t>(), intern_layout(dtype, fields[4].cast<std::vector<int64_t>>())};
}

Policy parse_policy(const c10::FunctionSchema& schema, const py::object& spec) {
  Policy policy;
  const auto static_names = spec.attr("static_numbers");
  const bool all_static = static_names.is_none();
  const auto dynamic_names = spec.attr("dynamic_ints");
  for (const auto& argument : schema.arguments()) {
    const py::str name(argument.name());
    policy.static_number.push_back(all_static || static_names.contains(name));
    policy.dynamic_int.push_back(dynamic_names.contains(name));
  }
  policy.moves_host = spec.attr("moves_host").cast<bool>();
  policy.bounded = spec.attr("bounded").cast<bool>();
  return policy;
}

}  // namespace

OpEntry::OpEntry(const c10::FunctionSchema& schema)
    : schema(schema),
      name(full_name(schema)),
      foreach (name.starts_with("aten::_foreach_")),
      device_argument(schema.argumentIndexWithName("device").value_or(-1)) {
  for (const auto& argument : schema.arguments()) {
    written.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
}

const Policy& OpEntry::policy() {
  if (policy_known_.load(std::memory_order_acquire)) return policy_;
  Gil gil;
  auto asked = parse_policy(schema, py::module_::import("torch_tpu.eager.miss").attr("policy")(name));
  if (!policy_known_.load(std::memory_order_acquire)) {  // the GIL orders the writers
    policy_ = std::move(asked);
    policy_known_.store(true, std::memory_order_release);
  }
  return policy_;
}

size_t OpEntry::Hash::operator()(KeyView key) const {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ key.size();
  for (uint64_t word : key) {
    const auto product = static_cast<unsigned __int128>(hash ^ word) * 0xd6e8feb86659fd93ull;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  return hash;
}

const Plan* OpEntry::find(KeyView key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : found->second.get();
}

const Plan* OpEntry::insert(KeyView key, std::unique_ptr<Plan> plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  return plans_.emplace(key.vec(), std::move(plan)).first->second.get();
}

OpEntry::Family OpEntry::family(KeyView key) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = families_.find(key);
  return found == families_.end() ? Family{} : found->second;
}

void OpEntry::count_offset(KeyView key) {
  std::lock_guard<std::mutex> lock(mutex_);
  families_[key.vec()].distinct += 1;
}

const Plan* OpEntry::insert_dynamic(KeyView key, std::unique_ptr<Plan> plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  dynamic_plans_.push_back(std::move(plan));
  return families_[key.vec()].dynamic = dynamic_plans_.back().get();
}

void keep_program(LoadedProgram& program) {
  static auto* loaded = new std::deque<LoadedProgram*>();
  static const auto most =
      py::module_::import("torch_tpu.runtime.executable").attr("most_loaded")().cast<size_t>();
  if (loaded->size() >= most) {
    for (size_t i = 0; i <= most / 4; ++i) {
      Py_CLEAR(loaded->front()->call);
      Py_CLEAR(loaded->front()->execute);
      Py_CLEAR(loaded->front()->handlers);
      loaded->pop_front();
      metrics().programs_dropped += 1;
    }
  }
  loaded->push_back(&program);
}

std::unique_ptr<Plan> parse_plan(PyObject* object) {
  const auto spec = py::reinterpret_borrow<py::object>(object);
  auto plan = std::make_unique<Plan>();
  plan->kind = kind_of(spec.attr("kind").cast<std::string>());
  if (plan->kind == Plan::Kind::Fallback) return plan;
  const py::object callable = spec.attr("callable");
  if (plan->kind == Plan::Kind::Host) {
    plan->function = py::object(callable).release().ptr();
    return plan;
  }
  if (!callable.is_none()) {  // none: a program without results
    plan->program->call = py::object(callable.attr("call")).release().ptr();
    if (!callable.attr("execute").is_none()) {
      plan->program->execute = py::object(callable.attr("execute")).release().ptr();
      plan->program->handlers = py::object(callable.attr("handlers")).release().ptr();
    }
  }
  plan->inputs = spec.attr("inputs").cast<std::vector<uint32_t>>();
  plan->donated = spec.attr("donated").cast<std::vector<bool>>();
  plan->packed = spec.attr("packed").cast<bool>();
  plan->random = spec.attr("random").cast<bool>();
  plan->offsets = spec.attr("offsets").cast<bool>();
  for (const auto& item : spec.attr("fresh")) plan->fresh.push_back(parse_fresh(item));
  plan->results = spec.attr("results").cast<std::vector<int32_t>>();
  for (const auto& [kind, index] : spec.attr("returns").cast<std::vector<std::pair<int, int64_t>>>()) {
    plan->returns.push_back({static_cast<Return::Kind>(kind), index});
  }
  for (const auto& item : spec.attr("resizes")) {
    const auto fields = py::reinterpret_borrow<py::tuple>(item);
    plan->resizes.push_back({fields[0].cast<uint32_t>(), fields[1].cast<std::vector<int64_t>>(),
                             fields[2].cast<std::vector<int64_t>>()});
  }
  for (const auto& [leaf, stride, size, start] :
       spec.attr("offset_rules").cast<std::vector<std::tuple<uint32_t, int64_t, int64_t, int64_t>>>()) {
    plan->offset_rules.push_back({leaf, stride, size, start});
  }
  for (const auto& [index_error, text] :
       spec.attr("bounds").cast<std::vector<std::pair<bool, std::string>>>()) {
    plan->bounds.push_back({index_error, text});
  }
  for (const auto& item : spec.attr("fits")) {
    const auto fields = py::reinterpret_borrow<py::tuple>(item);
    plan->fits.push_back(
        {fields[0].cast<uint32_t>(), reinterpret_cast<THPDtype*>(fields[1].ptr())->scalar_type});
  }
  if (spec.attr("asks").cast<bool>()) plan->accepted = std::make_unique<AcceptedNumbers>();
  return plan;
}

}  // namespace torch_tpu
