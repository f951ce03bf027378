// Random state of a device: a 64-bit seed, and a 64-bit count of the random programs run so far.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace torch_tpu {

// (seed, offset) for one random program on `device`; advances the offset by one. `generator` may be
// absent (the device's default one is used); raises when it belongs to another device.
std::pair<uint64_t, uint64_t> next_philox(const std::optional<at::Generator>& generator,
                                          c10::DeviceIndex device);

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

}  // namespace torch_tpu
