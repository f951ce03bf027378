// Device time for torch.profiler: programs are noted while a profile is being taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "value.h"

namespace torch_tpu {

extern std::atomic<bool> profiling;

// Nanoseconds of the monotonic clock while a profile is being taken, else 0. Taken before a program starts.
int64_t monotonic_ns();
inline int64_t profiling_start() { return profiling.load(std::memory_order_relaxed) ? monotonic_ns() : 0; }

// Notes a program that was started at `start` (of profiling_start) and gave the arrays `results`. The GIL
// must be held.
void profile_program(const std::string& name, c10::DeviceIndex device, int64_t start,
                     c10::ArrayRef<PyObject*> results);

}  // namespace torch_tpu
