// Run-time data of programs as one uint32 array, and Values that the core makes itself.
#pragma once

#include <Python.h>

#include <c10/util/ArrayRef.h>
#include <pybind11/pybind11.h>

#include "value.h"

namespace torch_tpu {

// A function of runtime/transfer.py. The GIL must be held.
const pybind11::object& transfer(const char* name);

// An array that a program takes as its packed parameter: a ready device array for words that were seen
// before, else a NumPy array. The GIL must be held.
struct Packed {
  pybind11::object array;  // null: no packed parameter
  bool on_device = true;
};
Packed packed_array(c10::ArrayRef<uint32_t> words, c10::DeviceIndex device, bool may_repeat);

// Zeros for a storage that was never written. The GIL must be held.
ValuePtr zero_value(const StorageRecord& record, const char* op);

// A copy of `value` in memory of its own, which may be donated. The GIL must be held.
ValuePtr copied_value(const Value& value);

// The numpy dtype object of the Values of `dtype`; borrowed. The GIL must be held.
PyObject* array_dtype(c10::ScalarType dtype);

}  // namespace torch_tpu
