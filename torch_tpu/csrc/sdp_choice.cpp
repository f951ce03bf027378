// Which implementation scaled_dot_product_attention takes: our own one program wherever it can serve.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include "kernel.h"
#include "value.h"

namespace torch_tpu {
namespace {

bool serves(const at::Tensor& t) {
  return t.device().type() == kTpu && t.layout() == c10::kStrided && !t.is_nested() && t.dim() == 4 &&
         t.sym_numel() != 0;
}

bool divides(const c10::SymInt& part, const c10::SymInt& whole) { return whole % part == 0; }

bool fused_serves(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::optional<at::Tensor>& mask, bool grouped) {
  if (!serves(query) || !serves(key) || !serves(value) || !query.is_floating_point()) return false;
  if (query.sym_size(0) != key.sym_size(0) || query.sym_size(0) != value.sym_size(0)) return false;
  if (mask.has_value() && mask->requires_grad()) return false;
  const auto heads = query.sym_size(1);
  const bool same = heads == key.sym_size(1) && heads == value.sym_size(1);
  return same || (grouped && divides(key.sym_size(1), heads) && divides(value.sym_size(1), heads));
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool grouped) {
  const auto& context = at::globalContext();
  if (context.userEnabledOverrideableSDP() && fused_serves(query, key, value, mask, grouped)) {
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

void attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) { run_op(entry_of(op), op, *stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", choose);
  m.impl("_scaled_dot_product_fused_attention_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&attention>());
}

}  // namespace
}  // namespace torch_tpu

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::choose)
}  // namespace at::native
