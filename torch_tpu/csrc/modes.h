// Process-wide settings that steer how ops are run. All reads are lock-free and need no GIL.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_tpu {

// How a window is flushed; the values are those of `torch.tpu.EagerMode`.
enum class EagerMode : int { Strict = 0, Debug = 1, DeferAndFuse = 2 };
EagerMode eager_mode();

// What happens to an op that has no program: it runs on the CPU with a warning once per op, or
// silently, or raises.
enum class Fallback : int { Warn = 0, Error = 1, Allow = 2 };
Fallback fallback_policy();

// Passes of a float32 matmul; the values are those of `torch.tpu.Precision`. Part of every plan key:
// the innermost `torch.tpu.precision(...)` of the process (backward threads obey it too),
// else `torch.set_float32_matmul_precision`.
enum class Precision : int { Default = 0, High = 1, Highest = 2 };
Precision matmul_precision();

// Whether programs check their index arguments. Part of the keys of ops that have any.
bool index_checks();

}  // namespace torch_tpu
