#include "value.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <mutex>
#include <unordered_map>

namespace torch_tpu {
namespace {

// Addresses: bit 62 marks ours, bits 56-61 the device, the rest a position in its address space.
// They are non-canonical, so that dereferencing one faults at once.
constexpr uintptr_t kMark = uintptr_t{1} << 62;
constexpr int kDeviceShift = 56;

// Hands out unique address ranges; freed ones are reused by size class, so that they never run out.
class AddressSpace {
 public:
  uintptr_t take(size_t nbytes) {
    const int size_class = class_of(nbytes);
    std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[size_class];
    if (!free.empty()) {
      const uintptr_t address = free.back();
      free.pop_back();
      return address;
    }
    const uintptr_t address = next_;
    next_ += uintptr_t{1} << size_class;
    return address;
  }
  void give(uintptr_t address, size_t nbytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_[class_of(nbytes)].push_back(address);
  }

 private:
  static int class_of(size_t nbytes) { return std::max(8, static_cast<int>(std::bit_width(nbytes))); }
  std::mutex mutex_;
  uintptr_t next_ = 4096;
  std::vector<uintptr_t> free_[64];
};

// What outlives every tensor is never destroyed: storages may be freed at any point of the exit.
AddressSpace& addresses(c10::DeviceIndex device) {
  static auto* spaces = new AddressSpace[kMaxDevices];
  return spaces[device];
}

struct LayoutKey {
  c10::ScalarType dtype;
  std::vector<int64_t> sizes;
  bool operator==(const LayoutKey&) const = default;
};
struct LayoutHash {
  size_t operator()(const LayoutKey& key) const {
    size_t hash = static_cast<size_t>(key.dtype);
    for (int64_t size : key.sizes) hash = c10::hash_combine(hash, static_cast<size_t>(size));
    return hash;
  }
};

// Values by device, so that a synchronisation can find those still being computed. GIL held.
std::vector<Value*>& live_values(c10::DeviceIndex device) {
  static auto* live = new std::vector<Value*>[kMaxDevices];
  return live[device];
}

// A dropped array that is still being computed: a synchronisation waits for it too.
struct InFlight {
  PyObject* array;
  c10::DeviceIndex device;
  const char* op;
};

struct Released {
  std::mutex mutex;
  std::vector<PyObject*> objects;
  std::vector<InFlight> in_flight;
  std::atomic<bool> any{false};
};
Released& released() {
  static auto* queue = new Released();
  return *queue;
}

// Looking at more of them at every call would cost more than the memory that it frees a little earlier.
constexpr size_t kSwept = 64;

// GIL held, no Python error set. A donated array is no longer there: the program that took it is waited for.
bool is_ready(PyObject* array) {
  static PyObject* name = PyUnicode_InternFromString("is_ready");
  PyObject* answer = PyObject_CallMethodNoArgs(array, name);
  if (answer == nullptr) PyErr_Clear();
  const bool ready = answer != Py_False;
  Py_XDECREF(answer);
  return ready;
}

void add_in_flight(std::vector<InFlight>&& items) {
  if (items.empty()) return;
  auto& queue = released();
  std::lock_guard<std::mutex> lock(queue.mutex);
  queue.in_flight.insert(queue.in_flight.end(), items.begin(), items.end());
  queue.any = true;
}

// The array of a value that nobody holds any more.
void release_array(PyObject* array, c10::DeviceIndex device, const char* op) {
  if (array == nullptr || !Py_IsInitialized()) return;
  if (PyGILState_Check() && PyErr_Occurred() == nullptr && is_ready(array)) {
    Py_DECREF(array);
    return;
  }
  add_in_flight({{array, device, op}});
}

std::mutex& live_mutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}

void delete_record(void* context) {
  auto* record = static_cast<StorageRecord*>(context);
  auto& counters = memory_counters(record->device);
  counters.allocated -= static_cast<int64_t>(record->nbytes);
  counters.frees += 1;
  addresses(record->device).give(record->address & ((uintptr_t{1} << kDeviceShift) - 1), record->nbytes);
  delete record;
}

// "1.50 GiB".
std::string readable(int64_t nbytes) {
  if (nbytes < 1024) return c10::str(nbytes, " bytes");
  double size = static_cast<double>(nbytes) / 1024;
  size_t unit = 0;
  for (; size >= 1024 && unit < 3; ++unit) size /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %ciB", size, "KMGT"[unit]);
  return text;
}

void count_allocation(c10::DeviceIndex device, int64_t nbytes) {
  auto& counters = memory_counters(device);
  const int64_t limit = memory_limit(device);
  const int64_t now = counters.allocated.load();
  if (limit > 0 && (nbytes > limit || now > limit - nbytes)) {
    counters.ooms += 1;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "TPU out of memory. Tried to allocate ", readable(nbytes),
                     ". Device tpu:", static_cast<int>(device), " has a capacity of ", readable(limit),
                     " of which ", readable(now),
                     " are allocated by PyTorch. Free tensors, use smaller batches, or raise the limit with "
                     "torch.tpu.set_per_process_memory_fraction.");
  }
  const int64_t total = counters.allocated += nbytes;
  counters.total_allocated += nbytes;
  counters.allocations += 1;
  int64_t peak = counters.peak.load(std::memory_order_relaxed);
  while (total > peak && !counters.peak.compare_exchange_weak(peak, total)) {
  }
}

}  // namespace

const Layout* intern_layout(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  static auto* table = new std::unordered_map<LayoutKey, const Layout*, LayoutHash>();
  static auto* mutex = new std::mutex();
  LayoutKey key{dtype, sizes.vec()};
  std::lock_guard<std::mutex> lock(*mutex);
  auto found = table->find(key);
  if (found != table->end()) return found->second;
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  const auto* layout =
      new Layout{dtype, sizes.vec(), numel, static_cast<size_t>(numel) * c10::elementSize(dtype)};
  table->emplace(std::move(key), layout);
  return layout;
}

Value::Value(PyObject* array, const Layout* layout, c10::DeviceIndex device, const char* op)
    : array(array), layout(layout), device(device), op(op) {
  std::lock_guard<std::mutex> lock(live_mutex());
  auto& live = live_values(device);
  live_index = live.size();
  live.push_back(this);
}

Value::~Value() {
  {
    std::lock_guard<std::mutex> lock(live_mutex());
    auto& live = live_values(device);
    live[live_index] = live.back();
    live[live_index]->live_index = live_index;
    live.pop_back();
  }
  settled ? release_later(array) : release_array(array, device, op);
}

std::vector<ValuePtr> unsettled_values(c10::DeviceIndex device) {
  std::vector<ValuePtr> values;
  std::vector<InFlight> items, others;
  {
    std::lock_guard<std::mutex> lock(released().mutex);
    items.swap(released().in_flight);
  }
  for (const InFlight& item : items) {
    if (item.device != device) {
      others.push_back(item);
      continue;
    }
    values.push_back(c10::make_intrusive<Value>(item.array, nullptr, device, item.op));
  }
  add_in_flight(std::move(others));
  std::lock_guard<std::mutex> lock(live_mutex());
  for (Value* value : live_values(device)) {
    if (value->settled) continue;
    // A value whose count is already zero waits for this lock in its destructor.
    auto held = c10::weak_intrusive_ptr<Value>::reclaim_copy(value).lock();
    if (held) values.push_back(std::move(held));
  }
  return values;
}

c10::DataPtr make_data(c10::DeviceIndex device, size_t nbytes, const Layout* layout) {
  count_allocation(device, static_cast<int64_t>(nbytes));
  const uintptr_t address =
      kMark | (static_cast<uintptr_t>(device) << kDeviceShift) | addresses(device).take(nbytes);
  auto* record = new StorageRecord{address, nbytes, device, layout, nullptr};
  return c10::DataPtr(reinterpret_cast<void*>(address), record, &delete_record, c10::Device(kTpu, device));
}

StorageRecord* record_of(const c10::Storage& storage) {
  const auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &delete_record ? static_cast<StorageRecord*>(data.get_context()) : nullptr;
}

c10::DeviceIndex device_of_address(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address);
  if (!(bits & kMark) || (bits >> 63)) return -1;
  return static_cast<c10::DeviceIndex>((bits >> kDeviceShift) & (kMaxDevices - 1));
}

std::recursive_mutex& values_mutex(c10::DeviceIndex device) {
  static auto* mutexes = new std::recursive_mutex[kMaxDevices];
  return mutexes[device];
}

MemoryCounters& memory_counters(c10::DeviceIndex device) {
  static auto* counters = new MemoryCounters[kMaxDevices];
  return counters[device];
}

std::atomic<int64_t>& memory_limit(c10::DeviceIndex device) {
  static auto* limits = new std::atomic<int64_t>[kMaxDevices]();
  return limits[device];
}

void release_later(PyObject* object) {
  if (object == nullptr || !Py_IsInitialized()) return;
  if (PyGILState_Check()) {
    Py_DECREF(object);
    return;
  }
  auto& queue = released();
  std::lock_guard<std::mutex> lock(queue.mutex);
  queue.objects.push_back(object);
  queue.any = true;
}

void drain_released() {
  auto& queue = released();
  if (!queue.any.load(std::memory_order_relaxed)) return;
  std::vector<PyObject*> objects;
  std::vector<InFlight> items, running;
  {
    std::lock_guard<std::mutex> lock(queue.mutex);
    objects.swap(queue.objects);
    items.swap(queue.in_flight);
    queue.any = false;
  }
  for (PyObject* object : objects) Py_DECREF(object);
  for (const InFlight& item : items) {
    if (running.size() >= kSwept || !is_ready(item.array)) {
      running.push_back(item);
    } else {
      Py_DECREF(item.array);
    }
  }
  add_in_flight(std::move(running));
}

}  // namespace torch_tpu
