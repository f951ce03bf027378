#include "traps.h"

#include <pybind11/pybind11.h>

#include <deque>
#include <limits>
#include <optional>
#include <string>

#include "modes.h"
#include "packed.h"
#include "python_error.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();  // NOTHING in lowering/checks.py
constexpr size_t kMostPending = 1024;  // programs whose findings are not looked at yet

struct Trap {
  py::object array;
  const Plan* plan;
  const char* op;
};

struct Finding {
  bool index_error;
  std::string text;
};

// Of one device, in program order. GIL held.
struct Traps {
  std::deque<Trap> pending;
  std::optional<Finding> found;  // and not raised yet
};

Traps& traps(c10::DeviceIndex device) {
  static auto* all = new Traps[kMaxDevices];
  return all[device];
}

void replace(std::string& text, const std::string& name, int64_t value) {
  const auto at = text.find(name);
  if (at != std::string::npos) text.replace(at, name.size(), std::to_string(value));
}

std::optional<Finding> finding(const Trap& trap, c10::DeviceIndex device) {
  const py::tuple view = transfer("host_view")(trap.array);
  const auto* found = reinterpret_cast<const int64_t*>(view[0].cast<uintptr_t>());
  for (size_t i = 0; i < trap.plan->bounds.size(); ++i) {
    if (found[i] == kNothing) continue;
    std::string text = trap.plan->bounds[i].text;
    replace(text, "{place}", found[i] >> 32);
    replace(text, "{value}", static_cast<int32_t>(found[i]));
    if (eager_mode() != EagerMode::Debug) {
      text += c10::str("\n  found by ", trap.op, " on tpu:", static_cast<int>(device),
                       " and reported now that the device is waited for; "
                       "torch.tpu.set_eager_mode('debug') raises it at the call");
    }
    return Finding{trap.plan->bounds[i].index_error, std::move(text)};
  }
  return std::nullopt;
}

// Looks at what is done, or at all; keeps the first finding.
void look(c10::DeviceIndex device, bool all) {
  auto& known = traps(device);
  while (!known.pending.empty()) {
    if (!all && !known.pending.front().array.attr("is_ready")().cast<bool>()) return;
    const Trap trap = std::move(known.pending.front());
    known.pending.pop_front();
    try {
      auto found = finding(trap, device);
      if (found && !known.found) known.found = std::move(found);
    } catch (py::error_already_set&) {  // the program failed: whoever waits for its results hears of that
    }
  }
}

}  // namespace

void add_trap(c10::DeviceIndex device, PyObject* array, const Plan& plan, const char* op) {
  traps(device).pending.push_back({py::reinterpret_steal<py::object>(array), &plan, op});
  if (traps(device).pending.size() > kMostPending) look(device, /*all=*/false);
}

void raise_trapped(c10::DeviceIndex device, bool all) {
  auto& known = traps(device);
  if (known.pending.empty() && !known.found) return;
  look(device, all);
  if (!known.found) return;
  const Finding found = *std::exchange(known.found, std::nullopt);
  TORCH_CHECK_INDEX(!found.index_error, found.text);
  TORCH_CHECK(false, found.text);
}

}  // namespace torch_tpu
