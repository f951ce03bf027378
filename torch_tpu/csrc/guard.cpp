#include "guard.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>

#include "events.h"
#include "python_error.h"
#include "registration.h"
#include "traps.h"
#include "value.h"

namespace py = pybind11;

namespace torch_tpu {

std::atomic<bool> in_bad_fork{false};

namespace {

thread_local c10::DeviceIndex thread_device = 0;
thread_local std::array<c10::StreamId, kMaxDevices> thread_streams{};
std::atomic<int> known_count{-1};
std::atomic<c10::StreamId> last_stream{0};

// Knowing the devices, their memory limits are known too.
int ask_device_count() {
  Gil gil;
  try {
    const auto client = py::module_::import("torch_tpu.runtime.client");
    const int count = client.attr("device_count")().cast<int>();
    TORCH_CHECK(count <= kMaxDevices, "a process can use ", kMaxDevices, " devices, got ", count);
    for (int device = 0; device < count; ++device) {
      memory_limit(static_cast<c10::DeviceIndex>(device)) =
          client.attr("memory_limit")(device).cast<int64_t>();
    }
    return count;
  } catch (py::error_already_set& error) {
    TORCH_CHECK(false, message_of(error));
  }
}

c10::Device tpu(c10::DeviceIndex index) { return c10::Device(kTpu, index); }

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, tpu(device), id);
}

c10::DeviceIndex index_of(c10::Device device) {
  TORCH_CHECK(device.type() == kTpu, "expected a tpu device, got ", device);
  return device_or_current(device.index());
}

// What XLA computes on; 4-bit, quantized and complex32 numbers are kept but not computed on.
constexpr std::array kDtypes = {
    c10::kByte,
    c10::kChar,
    c10::kShort,
    c10::kInt,
    c10::kLong,
    c10::kHalf,
    c10::kFloat,
    c10::kDouble,
    c10::kComplexFloat,
    c10::kComplexDouble,
    c10::kBool,
    c10::kBFloat16,
    c10::kUInt16,
    c10::kUInt32,
    c10::kUInt64,
    c10::kFloat8_e5m2,
    c10::kFloat8_e4m3fn,
    c10::kFloat8_e5m2fnuz,
    c10::kFloat8_e4m3fnuz,
    c10::kFloat8_e8m0fnu,
};

// Programs of one device run in the order in which they were started, whatever the stream, and a program
// that reads another device's value waits for it: so no stream ever has to wait for an event, and no memory
// is reused before the programs that read it are done.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kTpu; }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (const std::exception&) {
      return 0;  // the interface's word for a device that does not start; using it raises the reason
    }
  }

  c10::Device getDevice() const override { return tpu(thread_device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return tpu(exchange_device(index_of(device)));
  }
  void setDevice(c10::Device device) const override { exchange_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) thread_device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = index_of(device);
    return stream_of(index, thread_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device);
  }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    const auto index = index_of(device);
    check_device(index);
    return stream_of(index, ++last_stream);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto index = stream.device_index();
    return stream_of(index, std::exchange(thread_streams[index], stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());
  }
  bool queryStream(const c10::Stream& stream) const override { return device_idle(stream.device_index()); }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize_device(stream.device_index());
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    synchronize_device(device_or_current(device));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    if (*event == nullptr) *event = new Event(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT);
    static_cast<Event*>(*event)->record();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->query();
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) static_cast<Event*>(event)->synchronize();
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    const int64_t from = static_cast<Event*>(start)->done_ns();
    return static_cast<double>(static_cast<Event*>(end)->done_ns() - from) / 1e6;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }

  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (const auto dtype : kDtypes) {
      capability.capability_data.capability_bits |= uint64_t{1} << static_cast<int>(dtype);
    }
    return capability;
  }
};

void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", record_stream); }

}  // namespace

c10::DeviceIndex device_count() {
  int count = known_count.load(std::memory_order_acquire);
  if (count < 0) {
    count = ask_device_count();
    known_count.store(count, std::memory_order_release);
  }
  return static_cast<c10::DeviceIndex>(count);
}

c10::DeviceIndex current_device() { return thread_device; }

void check_device(c10::DeviceIndex device) {
  const auto count = device_count();
  TORCH_CHECK(device >= 0 && device < count, "invalid device tpu:", static_cast<int>(device),
              ": this process has ", static_cast<int>(count), " tpu device(s)");
}

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  if (device != thread_device) check_device(device);
  return std::exchange(thread_device, device);
}

void raise_bad_fork() {
  TORCH_CHECK(false,
              "Cannot re-initialize TPU in forked subprocess. To use TPU with multiprocessing, you must "
              "use the 'spawn' start method");
}

void synchronize_device(c10::DeviceIndex device) {
  check_fork();
  check_device(device);
  Gil gil;
  wait_for(unsettled_values(device));
  raise_trapped(device, /*all=*/true);
  drain_released();
}

void bind_guard(py::module_& m) {
  c10::impl::registerDeviceGuard(kTpu, new Guard());
  m.def("device_count", [] { return static_cast<int>(device_count()); });
  m.def("current_device", [] { return static_cast<int>(current_device()); });
  m.def("exchange_device", [](int device) { return static_cast<int>(exchange_device(device)); });
  m.def("synchronize", [](int device) { synchronize_device(device); });
  m.def("in_bad_fork", [] { return in_bad_fork.load(); });
  m.def("set_bad_fork", [] { in_bad_fork = true; });
  m.def("check_fork", &check_fork);
}

}  // namespace torch_tpu
