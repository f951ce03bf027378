// Pinned host memory: aligned blocks that XLA can read without a copy of its own.
#pragma once

#include <c10/core/Allocator.h>

namespace torch_tpu {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* pointer);  // inside a live block of pinned_allocator()

}  // namespace torch_tpu
