// Completion: which values of a device are still being computed, waiting for them, and events.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "value.h"

namespace torch_tpu {

// A point in a device's program order. Used through the guard and by the profiler; every function takes the
// GIL.
class Event {
 public:
  Event(c10::DeviceIndex device, bool timing) : device_(device), timing_(timing) {}
  ~Event() { release_later(stamp_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record();  // everything that was started on the device so far
  bool query();
  void synchronize();  // raises the first error of what it waited for
  int64_t done_ns();   // host time at which it was done; waits for it. Timing events only.

 private:
  const c10::DeviceIndex device_;
  const bool timing_;
  std::vector<ValuePtr> pending_;
  PyObject* stamp_ = nullptr;  // runtime.events.Stamp
};

// True when nothing of `device` is being computed.
bool device_idle(c10::DeviceIndex device);

// Waits for `values` in order; raises the first error, as a RuntimeError that names the op, after all are
// done. An error is raised once: its value counts as settled afterwards. The GIL must be held.
void wait_for(const std::vector<ValuePtr>& values);

}  // namespace torch_tpu
