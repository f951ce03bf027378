// Layout, Value and Storage: what a `tpu` storage holds.
#pragma once

#include <Python.h>

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace torch_tpu {

constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;
constexpr int kMaxDevices = 64;

// The dense row-major shape and dtype in which a Value holds a storage's elements.
// Interned and immortal: equal layouts are the same pointer.
struct Layout {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  int64_t numel;
  size_t nbytes;
};
const Layout* intern_layout(c10::ScalarType dtype, c10::IntArrayRef sizes);

// One immutable array on the device: owns a reference to a ready jax.Array.
struct Value final : c10::intrusive_ptr_target {
  // Steals the reference `array`; the GIL must be held.
  Value(PyObject* array, const Layout* layout, c10::DeviceIndex device, const char* op);
  ~Value() override;

  PyObject* array;
  const Layout* layout;
  c10::DeviceIndex device;
  const char* op;        // the op that made it, for errors that surface later
  size_t live_index;     // place in the registry of live values
  bool settled = false;  // known to have been computed without an error, or taken by a later program
};
using ValuePtr = c10::intrusive_ptr<Value>;

// What the context of a `tpu` DataPtr points to. `value` is null while nothing was written.
// `value` and `layout` are read and written with the GIL held.
struct StorageRecord {
  uintptr_t address;  // unique, never dereferenced
  size_t nbytes;
  c10::DeviceIndex device;
  std::atomic<const Layout*> layout;  // null until the first tensor on it is used
  ValuePtr value;
};

// A new storage record of `nbytes` on `device`, accounted for in its memory statistics.
// Raises OutOfMemoryError when it cannot fit. `layout` may be null.
c10::DataPtr make_data(c10::DeviceIndex device, size_t nbytes, const Layout* layout);

// The record behind a storage; null for a storage that never got one (torch.Storage of 0 bytes included).
StorageRecord* record_of(const c10::Storage& storage);

// The device an address belongs to, or -1 when it is not one of ours.
c10::DeviceIndex device_of_address(const void* address);

// Held by whoever takes Values to read or replaces them, so that none is donated under another's hands.
// Taken before the GIL.
std::recursive_mutex& values_mutex(c10::DeviceIndex device);

// Memory accounting of one device, in bytes of live storages.
struct MemoryCounters {
  std::atomic<int64_t> allocated{0}, peak{0}, allocations{0}, frees{0}, total_allocated{0}, ooms{0};
};
MemoryCounters& memory_counters(c10::DeviceIndex device);
// Bytes that a device may hold; set once the client has started (0: not known yet, no limit).
std::atomic<int64_t>& memory_limit(c10::DeviceIndex device);

// Drops a Python reference now when the GIL is held, else at the next time it is.
void release_later(PyObject* object);
void drain_released();  // the GIL must be held

// The values of `device` that are not known to be computed, those that were dropped meanwhile included. GIL
// held.
std::vector<ValuePtr> unsettled_values(c10::DeviceIndex device);

}  // namespace torch_tpu
