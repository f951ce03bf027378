// The device allocator: storages are records of values.h; what is counted are the bytes of live storages.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <array>

#include "guard.h"
#include "python_error.h"
#include "registration.h"
#include "value.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;
using Stat = c10::CachingAllocator::Stat;
using StatArray = c10::CachingAllocator::StatArray;
constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// What the accumulated statistics were when they were last reset.
struct Baseline {
  std::atomic<int64_t> bytes{0}, allocations{0}, frees{0}, freed_bytes{0};
};
std::array<Baseline, kMaxDevices> baselines;

Stat stat(int64_t current, int64_t peak, int64_t allocated, int64_t freed) {
  Stat result;
  result.current = current;
  result.peak = peak;
  result.allocated = allocated;
  result.freed = freed;
  return result;
}

// Total and in-use bytes as the device itself reports them; starts the client.
std::pair<size_t, size_t> ask_memory_info(c10::DeviceIndex device) {
  Gil gil;
  try {
    const auto client = py::module_::import("torch_tpu.runtime.client");
    const py::dict reported = client.attr("memory_stats")(static_cast<int>(device));
    const auto total = client.attr("memory_limit")(static_cast<int>(device)).cast<size_t>();
    const auto used = reported.contains("bytes_in_use") ? reported["bytes_in_use"].cast<size_t>() : 0;
    return {total, used};
  } catch (py::error_already_set& error) {
    TORCH_CHECK(false, message_of(error));
  }
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    check_fork();
    return make_data(current_device(), nbytes, nullptr);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "tpu memory has no raw addresses to copy between; copy tensors instead");
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    if (in_bad_fork) return;
    Gil gil;
    drain_released();
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_device(device);
    const auto& counters = memory_counters(device);
    const auto& base = baselines[device];
    const int64_t live = counters.allocated, total = counters.total_allocated;
    const Stat bytes = stat(live, counters.peak, total - base.bytes, total - live - base.freed_bytes);
    const int64_t made = counters.allocations, freed = counters.frees;
    const Stat count = stat(made - freed, made - freed, made - base.allocations, freed - base.frees);
    DeviceStats stats;
    for (StatArray* array :
         {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      (*array)[kAll] = bytes;
    }
    for (StatArray* array : {&stats.allocation, &stats.segment, &stats.active}) (*array)[kAll] = count;
    stats.num_ooms = counters.ooms;
    stats.num_device_alloc = count.allocated;
    stats.num_device_free = count.freed;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check_device(device);
    auto& counters = memory_counters(device);
    auto& base = baselines[device];
    base.bytes = counters.total_allocated.load();
    base.freed_bytes = counters.total_allocated - counters.allocated;
    base.allocations = counters.allocations.load();
    base.frees = counters.frees.load();
    counters.ooms = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    check_device(device);
    auto& counters = memory_counters(device);
    counters.peak = counters.allocated.load();
  }

  // (free, total). A lowered limit (set_per_process_memory_fraction) lowers what is free.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    check_device(device);
    auto [total, used] = ask_memory_info(device);
    const auto live = static_cast<size_t>(memory_counters(device).allocated.load());
    used = std::max(used, live);
    const int64_t limit = memory_limit(device);
    const size_t usable = limit > 0 ? std::min(total, static_cast<size_t>(limit)) : total;
    return {usable > used ? usable - used : 0, total};
  }
};

}  // namespace

void bind_allocator(py::module_& m) {
  c10::SetAllocator(kTpu, new Allocator(), /*priority=*/1);
  m.def("set_memory_limit", [](int device, int64_t nbytes) {
    check_device(static_cast<c10::DeviceIndex>(device));
    memory_limit(static_cast<c10::DeviceIndex>(device)) = nbytes;
  });
}

}  // namespace torch_tpu
