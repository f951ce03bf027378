// Devices of this process: how many, which is current on a thread, and waiting for one.
#pragma once

#include <c10/core/Device.h>

#include <atomic>

namespace torch_tpu {

// Asks `torch_tpu.runtime.client.device_count()` once (takes the GIL then), cached ever after.
// Raises what that call raised.
c10::DeviceIndex device_count();

c10::DeviceIndex current_device();                          // of this thread; no lock, no GIL
c10::DeviceIndex exchange_device(c10::DeviceIndex device);  // returns the previous one; checks the range
inline c10::DeviceIndex device_or_current(c10::DeviceIndex device) {
  return device < 0 ? current_device() : device;
}

// Raises IndexError-like RuntimeError when `device` is no device of this process.
void check_device(c10::DeviceIndex device);

// Raises in a child process that was forked after the device was in use. One relaxed load.
extern std::atomic<bool> in_bad_fork;
[[noreturn]] void raise_bad_fork();
inline void check_fork() {
  if (in_bad_fork.load(std::memory_order_relaxed)) [[unlikely]]
    raise_bad_fork();
}

// Waits until everything that was started on `device` is done, then raises the first error of it as a
// RuntimeError that names the op. Takes the GIL.
void synchronize_device(c10::DeviceIndex device);

}  // namespace torch_tpu
