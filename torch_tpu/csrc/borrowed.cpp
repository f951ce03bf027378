#include "borrowed.h"

namespace torch_tpu {
namespace {

struct Borrowed final : c10::OperatorKernel {
  explicit Borrowed(c10::DispatchKey key) : key(key) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    op.callBoxedForDispatchKey(key, *stack);
  }
  c10::DispatchKey key;
};

}  // namespace

void borrow(Handles& handles, const c10::OperatorHandle& op, c10::DispatchKey from, c10::DispatchKey to) {
  handles.push_back(c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), to, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Borrowed>(from)),
      std::nullopt, nullptr, "torch_tpu borrowed kernel"));
}

std::vector<c10::OperatorHandle> borrowable(c10::DispatchKey from, c10::DispatchKey to) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::OperatorHandle> found;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) == 0 && op && op->hasSchema() && op->hasKernelForDispatchKey(from) &&
        !op->hasKernelForDispatchKey(to)) {
      found.push_back(*op);
    }
  }
  return found;
}

}  // namespace torch_tpu
