// What makes PrivateUse1 a complete device, one topic per file. `module.cpp` calls `register_device` once.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_tpu {

// Registers hooks, guard, allocators, generators, autocast, profiler and the SDPA choice, and binds
// their Python functions into `torch_tpu._C`. Raises RuntimeError when the autograd engine already
// runs without a thread for our devices.
void register_device(pybind11::module_& m);

// The topics, in the order in which `register_device` calls them.
void bind_modes(pybind11::module_& m);      // modes.h: eager mode, precision, fallback policy
void bind_guard(pybind11::module_& m);      // guard.h: devices, streams, synchronize, fork
void bind_events(pybind11::module_& m);     // events.h
void bind_allocator(pybind11::module_& m);  // memory statistics
void register_host_allocator();             // host_allocator.h
void bind_generator(pybind11::module_& m);  // generator.h
void register_hooks();
void register_profiler();
void register_sparse();
void register_nested();

}  // namespace torch_tpu
