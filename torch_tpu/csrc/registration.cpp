#include "registration.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

namespace torch_tpu {
namespace {

// The autograd engine makes its device threads at its first backward, one for each device that exists then.
struct EngineView final : torch::autograd::Engine {
  static bool started() {
    auto& engine = torch::autograd::Engine::get_default_engine();
    return (engine.*(&EngineView::thread_pool_shared_)) != nullptr;
  }
};

}  // namespace

void register_device(pybind11::module_& m) {
  TORCH_CHECK(
      !EngineView::started(),
      "torch_tpu was imported after a backward pass. PyTorch's autograd engine makes a thread for each "
      "device at its first backward, so a device that is registered later has none. Import torch_tpu before "
      "the first backward, or leave autoloading on (unset TORCH_DEVICE_BACKEND_AUTOLOAD).");
  bind_modes(m);
  bind_guard(m);
  bind_allocator(m);
  register_host_allocator();
  bind_generator(m);
  register_hooks();
  register_profiler();
  register_sparse();
  register_nested();
}

}  // namespace torch_tpu
