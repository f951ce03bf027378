#include "host_allocator.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winterference-size"  // PyTorch's header asks for it
#include <ATen/core/CachingHostAllocator.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "registration.h"
#include "value.h"

namespace torch_tpu {
namespace {

constexpr size_t kAlignment = 64;  // what XLA's clients ask of host memory they use in place

// Live blocks by address. Copies to the device read their source before they return, or hold it alive, so a
// block can be freed at once.
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, size_t> sizes;
  int64_t bytes = 0, peak = 0, total_bytes = 0, made = 0, freed = 0;
};
Blocks& blocks() {
  static auto* all = new Blocks();
  return *all;
}

void free_block(void* pointer) {
  auto& all = blocks();
  {
    std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.sizes.find(reinterpret_cast<uintptr_t>(pointer));
    all.bytes -= static_cast<int64_t>(found->second);
    all.freed += 1;
    all.sizes.erase(found);
  }
  std::free(pointer);
}

struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const size_t rounded = std::max((nbytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
    void* pointer = std::aligned_alloc(kAlignment, rounded);
    TORCH_CHECK_WITH(OutOfMemoryError, pointer != nullptr, "not enough host memory for ", nbytes,
                     " pinned bytes");
    auto& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.sizes.emplace(reinterpret_cast<uintptr_t>(pointer), rounded);
    all.made += 1;
    all.bytes += static_cast<int64_t>(rounded);
    all.total_bytes += static_cast<int64_t>(rounded);
    all.peak = std::max(all.peak, all.bytes);
    return {pointer, pointer, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }

  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    auto& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    at::HostStats stats;
    stats.allocated_bytes.current = stats.active_bytes.current = all.bytes;
    stats.allocated_bytes.peak = stats.active_bytes.peak = all.peak;
    stats.allocated_bytes.allocated = stats.active_bytes.allocated = all.total_bytes;
    stats.allocations.current = stats.active_requests.current = all.made - all.freed;
    stats.num_host_alloc = all.made;
    stats.num_host_free = all.freed;
    return stats;
  }
  void reset_accumulated_stats() override {
    auto& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.total_bytes = all.bytes;
    all.made -= all.freed;
    all.freed = 0;
  }
  void reset_peak_stats() override {
    auto& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.peak = all.bytes;
  }
};

HostAllocator& allocator() {
  static auto* instance = new HostAllocator();
  return *instance;
}

}  // namespace

c10::Allocator* pinned_allocator() { return &allocator(); }

bool is_pinned(const void* pointer) {
  auto& all = blocks();
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  std::lock_guard<std::mutex> lock(all.mutex);
  auto after = all.sizes.upper_bound(address);
  if (after == all.sizes.begin()) return false;
  --after;
  return address < after->first + after->second;
}

void register_host_allocator() { at::setHostAllocator(kTpu, &allocator()); }

}  // namespace torch_tpu
