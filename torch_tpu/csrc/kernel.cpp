#include "kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/native/CPUFallback.h>

#include <unordered_set>

#include "guard.h"
#include "metrics.h"
#include "modes.h"
#include "python_error.h"

namespace torch_tpu {
namespace {

// Ops that PyTorch composes of others and that make no program of their own: allocation, placement, metadata.
const std::unordered_set<std::string>& composed() {
  static const std::unordered_set<std::string> names{"aten::empty_like",
                                                     "aten::as_strided_copy",
                                                     "aten::as_strided_scatter",
                                                     "aten::_linalg_check_errors",
                                                     "aten::_unsafe_view",
                                                     "aten::new_empty",
                                                     "aten::_pack_padded_sequence",
                                                     "aten::polygamma_",
                                                     "aten::new_empty_strided",
                                                     "aten::_to_copy",
                                                     "aten::clone",
                                                     "aten::lift",
                                                     "aten::lift_fresh",
                                                     "aten::resize_as_",
                                                     "aten::_pin_memory",
                                                     "aten::is_pinned",
                                                     "aten::_has_same_storage_numel",
                                                     "aten::is_same_size",
                                                     "aten::empty_permuted",
                                                     "aten::_lazy_clone",
                                                     "aten::_resize_output_",
                                                     "aten::_print",
                                                     "aten::sym_size.int",
                                                     "aten::sym_stride.int",
                                                     "aten::sym_numel",
                                                     "aten::sym_storage_offset",
                                                     "aten::_nested_tensor_from_mask",
                                                     "aten::_nested_tensor_from_mask_left_aligned",
                                                     "aten::_nested_from_padded",
                                                     "aten::_nested_tensor_from_tensor_list",
                                                     "aten::_nested_view_from_buffer_copy",
                                                     "aten::_nested_compute_contiguous_strides_offsets",
                                                     "aten::_is_any_true",
                                                     "aten::_is_all_true",
                                                     "aten::_assert_async",
                                                     "aten::_assert_scalar",
                                                     "aten::_functional_assert_scalar",
                                                     "aten::_foreach_copy_",
                                                     "aten::_copy_from",
                                                     "aten::_copy_from_and_resize",
                                                     "aten::record_stream",
                                                     "aten::_sparse_coo_tensor_unsafe"};
  return names;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool gives_tensors(const c10::FunctionSchema& schema) {
  bool others = false;
  for (const auto& result : schema.returns()) {
    const auto kind = result.type()->kind();
    if (kind == c10::TypeKind::TensorType || kind == c10::TypeKind::ListType) return true;
    others = true;
  }
  return !others;
}

bool wanted(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || op.operator_name().name.rfind("aten::", 0) != 0) return false;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) return false;
  const auto name = op.operator_name();
  const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
  // Ops in place on metadata (transpose_, squeeze_) are PyTorch's own, like views.
  if (composed().count(full) || is_view(op.schema()) || op.hasTag(at::Tag::inplace_view)) return false;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return true;
  if (!gives_tensors(op.schema())) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

// The kernel of one op: knows its entry.
struct BoxedKernel final : c10::OperatorKernel {
  explicit BoxedKernel(OpEntry& entry) : entry(entry) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run_op(entry, op, *stack);
  }
  OpEntry& entry;
};

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_op(entry_of(op), op, *stack);
}

constexpr uint64_t kAnyOffset = ~uint64_t{0};

KeyWords without_offsets(const Call& call) {
  KeyWords key(call.key);
  for (uint32_t word : call.offset_words) key[word] = kAnyOffset;
  return key;
}

bool offsets_fit(const Plan& plan, const Call& call) {
  for (const auto& rule : plan.offset_rules) {
    for (size_t i = 0; i < call.offset_leaves.size(); ++i) {
      if (call.offset_leaves[i] != rule.leaf) continue;
      if ((call.offsets[i] / rule.stride) % rule.size > rule.max_start) return false;
    }
  }
  return true;
}

const Plan* known_plan(Call& call) {
  if (const Plan* plan = call.entry.find(call.key)) return plan;
  if (call.offset_words.empty()) return nullptr;
  const auto family = call.entry.family(without_offsets(call));
  return family.dynamic != nullptr && offsets_fit(*family.dynamic, call) ? family.dynamic : nullptr;
}

void keep(Plan& plan) {
  Gil gil;
  if (plan.program->call != nullptr) keep_program(*plan.program);
}

const Plan* new_plan(Call& call) {
  check_device(call.device);
  // A waiting thread must not hold the GIL, which the building one needs.
  const NoGil no_gil;
  std::lock_guard<std::recursive_mutex> lock(call.entry.building);
  if (const Plan* plan = known_plan(call)) return plan;
  metrics().plan_misses += 1;
  const auto any_offset = without_offsets(call);
  const auto family = call.entry.family(any_offset);
  const bool dynamic = !call.offset_words.empty() && family.distinct >= 2 && family.dynamic == nullptr;
  auto plan = build_plan(call, dynamic);
  keep(*plan);
  if (plan->offsets) return call.entry.insert_dynamic(any_offset, std::move(plan));
  if (!call.offset_words.empty()) call.entry.count_offset(any_offset);
  return call.entry.insert(call.key, std::move(plan));
}

}  // namespace

OpEntry& entry_of(const c10::OperatorHandle& op) {
  static auto* entries = new std::unordered_map<std::string, std::unique_ptr<OpEntry>>();
  static auto* replaced = new std::vector<std::unique_ptr<OpEntry>>();  // calls may be in them
  static auto* mutex = new std::mutex();
  const auto name = op.operator_name().name + "." + op.operator_name().overload_name;
  std::lock_guard<std::mutex> lock(*mutex);
  auto& entry = (*entries)[name];
  if (entry && entry->schema != op.schema()) replaced->push_back(std::move(entry));  // defined anew
  if (!entry) entry = std::make_unique<OpEntry>(op.schema());
  return *entry;
}

void reload(Call& call, const Plan& plan) {
  const NoGil no_gil;
  std::lock_guard<std::recursive_mutex> lock(call.entry.building);
  const auto again = build_plan(call, plan.offsets);
  Gil gil;
  if (plan.program->call != nullptr) return;  // another thread was faster
  std::swap(*plan.program, *again->program);
  keep_program(*plan.program);
}

// Whether a call makes its result on another device than that of its tensor: zeros_like(x, device="cpu").
bool leaves_device(const OpEntry& entry, const torch::jit::Stack& stack) {
  const size_t first = stack.size() - entry.schema.arguments().size();
  const auto& wanted = stack[first + entry.device_argument];
  if (!wanted.isDevice()) return false;
  for (size_t i = first; i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined()) {
      const auto device = wanted.toDevice(), own = stack[i].toTensor().device();
      return device.type() != own.type() || (device.has_index() && device.index() != own.index());
    }
  }
  return false;
}

void run_op(OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (entry.device_argument >= 0 && leaves_device(entry, stack) &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, stack);
  }
  metrics().ops.fetch_add(1, std::memory_order_relaxed);
  const Plan* plan;
  {
    Call call(entry, stack);
    plan = known_plan(call);
    if (C10_LIKELY(plan != nullptr)) {
      metrics().plan_hits.fetch_add(1, std::memory_order_relaxed);
    }
    if (plan == nullptr) plan = new_plan(call);
    if (plan->kind == Plan::Kind::Program) return execute(call, *plan);
    if (plan->kind == Plan::Kind::Host) return run_host(call, *plan);
    announce_fallback(entry, call.arguments());
  }
  at::native::cpu_fallback(op, &stack, /*error_on_views=*/true);
}

void register_kernels() {
  auto& dispatcher = c10::Dispatcher::singleton();
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !wanted(*op)) continue;
    auto kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(entry_of(*op)));
    handles->push_back(dispatcher.registerImpl(name, c10::DispatchKey::PrivateUse1, std::move(kernel),
                                               std::nullopt, nullptr, "torch_tpu boxed kernel"));
  }
  handles->push_back(dispatcher.registerFallback(c10::DispatchKey::PrivateUse1,
                                                 c10::KernelFunction::makeFromBoxedFunction<&fallback>(),
                                                 "torch_tpu fallback"));
}

}  // namespace torch_tpu
