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
// Loads the program of a plan again that was dropped. kernel.cpp
void reload(Call& call, const Plan& plan);
// Runs a Python function of torch tensors for a call. bridge.cpp
void run_host(Call& call, const Plan& plan);
// Raises the pending Python error as it is, with what is known of the call added. The GIL must be held.
// bridge.cpp
[[noreturn]] void raise_python_error(Call* call);
// Raises what the CPU raises for the values of a call's numbers. numbers.cpp
void check_numbers(Call& call, const Plan& plan);
// Asks the CPU's kernel whether it takes the numbers of a call; raises its error. bridge.cpp
void ask_numbers(Call& call);
// Counts, and warns of or refuses, a run on the CPU of an op with these arguments. bridge.cpp
void announce_fallback(OpEntry& entry, c10::ArrayRef<c10::IValue> arguments);

void bind_kernels(pybind11::module_& m);

}  // namespace torch_tpu
