#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>

#include "generator.h"
#include "guard.h"
#include "host_allocator.h"
#include "registration.h"
#include "value.h"

namespace torch_tpu {

void resize_storage(const c10::Storage& storage, size_t nbytes);  // storage.h, which needs all of Tensor

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override {
    try {
      return !in_bad_fork && device_count() > 0;
    } catch (const std::exception&) {
      return false;  // must not throw; using the device raises the reason
    }
  }
  void init() const override { check_fork(); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    const auto& counters = memory_counters(device_or_current(device));
    return counters.allocations > 0;
  }

  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { maybeExchangeDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  // A negative index means: leave it.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_device(device_or_current(device));
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  at::Device getDeviceFromPtr(void* data) const override {
    const auto device = device_of_address(data);
    TORCH_CHECK(device >= 0, "the address ", data, " is not in the memory of a tpu device");
    return at::Device(kTpu, device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage, nbytes);
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }

}  // namespace torch_tpu
