// The one kernel of every op, and the registration of it.
#pragma once

#include <ATen/core/stack.h>
#include <pybind11/pybind11.h>

#include "call.h"
#include "plan.h"

namespace torch_tpu {

// Runs one op call: arguments on the stack are replaced by its results.
void run_op(OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Registers run_op for every op that has a CPU or a composite-explicit kernel, except views and `own`,
// the ops for which the device has kernels of its own; and as the fallback for ops defined later.
void register_kernels();

// Executes a program plan and puts the results on the stack. execute.cpp
void execute(Call& call, const Plan& plan);

// A plan for a call whose key is not known: asks eager/miss.py. bridge.cpp
std::unique_ptr<Plan> build_plan(Call& call, bool dynamic_offsets);
// Runs a Python function of torch tensors for a call. bridge.cpp
void run_host(Call& call, const Plan& plan);
// Raises the pending Python error as it is, with what is known of the call added. The GIL must be held.
// bridge.cpp
[[noreturn]] void raise_python_error(Call* call);
// Debug Eager's checks of the arguments on the host. bridge.cpp
void check_arguments(Call& call);
// Counts, and warns of or refuses, a run on the CPU. bridge.cpp
void announce_fallback(Call& call);

void bind_kernels(pybind11::module_& m);

}  // namespace torch_tpu
