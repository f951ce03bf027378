#include "events.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>

#include "python_error.h"
#include "traps.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

py::handle array_of(const ValuePtr& value) { return py::handle(value->array); }

// A donated array is gone: the program that took it comes later in program order, and is waited for itself.
bool is_deleted(const ValuePtr& value) { return array_of(value).attr("is_deleted")().cast<bool>(); }

// The error of a value, or "" once it is there.
std::string wait_for_one(const ValuePtr& value) {
  try {
    if (!is_deleted(value)) array_of(value).attr("block_until_ready")();
    value->settled = true;
    return "";
  } catch (py::error_already_set& raised) {
    return message_of(raised);
  }
}

// A failed value is done too, but not settled: its error is for whoever waits for it.
bool is_done(const ValuePtr& value) {
  if (value->settled) return true;
  if (!is_deleted(value) && !array_of(value).attr("is_ready")().cast<bool>()) return false;
  wait_for_one(value);
  return true;
}

void keep_pending(std::vector<ValuePtr>& values) {
  values.erase(std::remove_if(values.begin(), values.end(), is_done), values.end());
}

py::object new_stamp(c10::DeviceIndex device, const std::vector<ValuePtr>& pending) {
  py::list arrays;
  for (const auto& value : pending) arrays.append(array_of(value));
  return py::module_::import("torch_tpu.runtime.events").attr("stamp")(static_cast<int>(device), arrays);
}

}  // namespace

void wait_for(const std::vector<ValuePtr>& values) {
  std::string first;
  const Value* failed = nullptr;
  for (const auto& value : values) {
    if (value->settled) continue;
    std::string error = wait_for_one(value);
    value->settled = true;
    if (!error.empty() && failed == nullptr) {
      first = std::move(error);
      failed = value.get();
    }
  }
  if (failed == nullptr) return;
  const bool memory = first.find("RESOURCE_EXHAUSTED") != std::string::npos;
  const std::string text =
      c10::str(failed->op, " on tpu:", static_cast<int>(failed->device), " failed: ", first);
  TORCH_CHECK_WITH(OutOfMemoryError, !memory, text);
  TORCH_CHECK(false, text);
}

bool device_idle(c10::DeviceIndex device) {
  Gil gil;
  const auto values = unsettled_values(device);
  return std::all_of(values.begin(), values.end(), is_done);
}

void Event::record() {
  Gil gil;
  pending_ = unsettled_values(device_);
  keep_pending(pending_);
  if (!timing_) return;
  release_later(stamp_);
  stamp_ = new_stamp(device_, pending_).release().ptr();
}

bool Event::query() {
  Gil gil;
  keep_pending(pending_);
  if (!pending_.empty()) return false;
  return stamp_ == nullptr || py::handle(stamp_).attr("is_done")().cast<bool>();
}

void Event::synchronize() {
  Gil gil;
  const std::vector<ValuePtr> pending = std::move(pending_);
  pending_.clear();
  if (stamp_ != nullptr) py::handle(stamp_).attr("wait")();
  wait_for(pending);
  raise_trapped(device_, /*all=*/false);
}

int64_t Event::done_ns() {
  Gil gil;
  TORCH_CHECK(stamp_ != nullptr, "Event.elapsed_time(): expected events recorded with enable_timing=True");
  return py::handle(stamp_).attr("wait")().cast<int64_t>();
}

}  // namespace torch_tpu
