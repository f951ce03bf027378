#include "generator.h"

#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Generator.h>

#include <cstring>
#include <vector>

#include "guard.h"
#include "registration.h"
#include "value.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

struct State {
  uint64_t seed = c10::default_rng_seed_val;
  uint64_t offset = 0;
};

struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(kTpu, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        state(std::make_shared<State>()) {}
  static c10::DeviceType device_type() { return kTpu; }

  void set_current_seed(uint64_t seed) override { *state = {seed, 0}; }
  void set_offset(uint64_t offset) override { state->offset = offset; }
  uint64_t get_offset() const override { return state->offset; }
  uint64_t current_seed() const override { return state->seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state->seed;
  }

  void set_state(const c10::TensorImpl& tensor) override {
    at::detail::check_rng_state(tensor);
    TORCH_CHECK(tensor.numel() == sizeof(State), "RNG state is wrong size: expected ", sizeof(State),
                " bytes, got ", tensor.numel());
    std::memcpy(state.get(), tensor.data(), sizeof(State));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto tensor = at::empty({sizeof(State)}, at::TensorOptions(c10::kCPU).dtype(c10::kByte));
    std::memcpy(tensor.mutable_data_ptr(), state.get(), sizeof(State));
    return tensor.getIntrusivePtr();
  }
  // Graph-safe states share the numbers themselves: what one generator draws, the other has drawn too.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    const auto* tpu = dynamic_cast<const Generator*>(other.get());
    TORCH_CHECK(tpu != nullptr, "graphsafe_set_state(): expected the state of a tpu generator");
    state = tpu->state;
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override {
    auto copy = c10::make_intrusive<Generator>(device().index());
    copy->state = state;
    return copy;
  }

  std::shared_ptr<State> state;

 private:
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    *copy->state = *state;
    return copy;
  }
};

std::vector<at::Generator>& default_generators() {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int device = 0; device < kMaxDevices; ++device) {
      made->push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(device)));
    }
    return made;
  }();
  return *all;
}

void set_default_seed(c10::DeviceIndex device, uint64_t seed) {
  auto generator = default_generators().at(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  const auto index = device_or_current(device);
  check_device(index);
  return default_generators()[index];
}

at::Generator new_generator(c10::DeviceIndex device) {
  const auto index = device_or_current(device);
  check_device(index);
  return at::make_generator<Generator>(index);
}

std::pair<uint64_t, uint64_t> next_philox(const std::optional<at::Generator>& generator,
                                          c10::DeviceIndex device) {
  auto* chosen = at::get_generator_or_default<Generator>(generator, default_generators().at(device));
  TORCH_CHECK(chosen->device().index() == device, "Expected a 'tpu:", static_cast<int>(device),
              "' device type for generator but found '", chosen->device(), "'");
  std::lock_guard<std::mutex> lock(chosen->mutex_);
  return {chosen->state->seed, chosen->state->offset++};
}

// Seeding works before the client starts: it touches every generator there could be, and asks for no count.
void bind_generator(py::module_& m) {
  m.def("manual_seed",
        [](int device, uint64_t seed) { set_default_seed(static_cast<c10::DeviceIndex>(device), seed); });
  m.def("manual_seed_all", [](uint64_t seed) {
    for (int device = 0; device < kMaxDevices; ++device)
      set_default_seed(static_cast<c10::DeviceIndex>(device), seed);
  });
  m.def("default_generator", [](int device) {
    const auto& generator = default_generator(static_cast<c10::DeviceIndex>(device));
    return py::reinterpret_steal<py::object>(THPGenerator_Wrap(generator));
  });
}

}  // namespace torch_tpu
