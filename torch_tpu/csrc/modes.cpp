#include "modes.h"

#include <ATen/Context.h>

#include "registration.h"

namespace torch_tpu {
namespace {

std::atomic<int> current_eager_mode{static_cast<int>(EagerMode::Strict)};
std::atomic<int> current_fallback{static_cast<int>(Fallback::Warn)};
std::atomic<int> current_index_checks{1};
constexpr int kUnset = -1;
std::atomic<int> process_precision{kUnset};

}  // namespace

EagerMode eager_mode() { return static_cast<EagerMode>(current_eager_mode.load(std::memory_order_relaxed)); }
Fallback fallback_policy() { return static_cast<Fallback>(current_fallback.load(std::memory_order_relaxed)); }

bool index_checks() { return current_index_checks.load(std::memory_order_relaxed) != 0; }

Precision matmul_precision() {
  const int chosen = process_precision.load(std::memory_order_relaxed);
  if (chosen != kUnset) return static_cast<Precision>(chosen);
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return Precision::Highest;
    case at::Float32MatmulPrecision::HIGH:
      return Precision::High;
    default:
      return Precision::Default;
  }
}

void bind_modes(pybind11::module_& m) {
  m.def("eager_mode", [] { return current_eager_mode.load(); });
  m.def("exchange_eager_mode", [](int mode) { return current_eager_mode.exchange(mode); });
  m.def("fallback_policy", [] { return current_fallback.load(); });
  m.def("exchange_fallback_policy", [](int policy) { return current_fallback.exchange(policy); });
  m.def("index_checks", [] { return index_checks(); });
  m.def("exchange_index_checks", [](int on) { return current_index_checks.exchange(on); });
  m.def("matmul_precision", [] { return static_cast<int>(matmul_precision()); });
  m.def(
      "exchange_precision", [](int precision) { return process_precision.exchange(precision); },
      "Overrides torch.set_float32_matmul_precision; -1 ends that. Returns the previous override.");
}

}  // namespace torch_tpu
