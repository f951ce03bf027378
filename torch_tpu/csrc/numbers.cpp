// The values of a call's numbers: run-time data, so they are checked at every call.
#include <ATen/Dispatch_v2.h>

#include "kernel.h"

namespace torch_tpu {
namespace {

constexpr size_t kMostAccepted = 256;

// Raises PyTorch's own "value cannot be converted to type ... without overflow".
void check_fit(const c10::Scalar& number, c10::ScalarType dtype) {
  AT_DISPATCH_V2(dtype, "number", AT_WRAP([&] { (void)number.to<scalar_t>(); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kHalf,
                 at::kBFloat16);
}

}  // namespace

bool AcceptedNumbers::contains(c10::ArrayRef<uint32_t> words) {
  std::lock_guard<std::mutex> lock(mutex_);
  return words_.contains(words.vec());
}

void AcceptedNumbers::insert(c10::ArrayRef<uint32_t> words) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (words_.size() >= kMostAccepted) words_.clear();
  words_.insert(words.vec());
}

void check_numbers(Call& call, const Plan& plan) {
  for (const auto& fit : plan.fits) {
    const auto& value = call.argument(fit.argument);
    if (value.isScalar() || value.isUnsigned()) check_fit(value.toScalar(), fit.dtype);
  }
  if (plan.accepted != nullptr && !plan.accepted->contains(call.words)) {
    ask_numbers(call);
    plan.accepted->insert(call.words);
  }
}

}  // namespace torch_tpu
