// Counters of everything that costs: ops, plan misses, fallbacks, synchronisations, bytes moved.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>

namespace torch_tpu {

struct Metrics {
  std::atomic<uint64_t> ops{0}, plan_hits{0}, plan_misses{0}, programs_run{0}, programs_dropped{0},
      values_shared{0}, values_copied{0};
  std::atomic<uint64_t> bytes_to_device{0}, bytes_from_device{0};
};
Metrics& metrics();

// Counts a synchronisation at the innermost Python line outside torch and torch_tpu. The GIL must be held.
void count_synchronization();

// Counts a fallback to the CPU of the op `name`. The GIL must be held.
void count_fallback(const char* name);

void bind_metrics(pybind11::module_& m);

}  // namespace torch_tpu
