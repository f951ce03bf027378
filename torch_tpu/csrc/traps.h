// Positions out of range that programs found, until the host waits for the device and hears of them.
#pragma once

#include "plan.h"

namespace torch_tpu {

// Keeps the findings of one program: int64 [bounds], see lowering/checks.py. Steals `array`. GIL held.
void add_trap(c10::DeviceIndex device, PyObject* array, const Plan& plan, const char* op);

// Raises the first finding of `device` as an IndexError or RuntimeError that names the op: among the programs
// that are done, or among all (waits for them). Each is raised once. The GIL must be held.
void raise_trapped(c10::DeviceIndex device, bool all);

}  // namespace torch_tpu
