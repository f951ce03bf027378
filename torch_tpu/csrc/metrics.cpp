#include "metrics.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace py = pybind11;

namespace torch_tpu {
namespace {

// Both under the GIL.
std::map<std::pair<std::string, int>, uint64_t>& synchronizations() {
  static auto* counts = new std::map<std::pair<std::string, int>, uint64_t>();
  return *counts;
}
std::map<std::string, uint64_t>& fallbacks() {
  static auto* counts = new std::map<std::string, uint64_t>();
  return *counts;
}

// The folders of torch and of this package, and Python's own frozen modules.
bool is_library(std::string_view file) {
  static const auto* folders = [] {
    auto* found = new std::vector<std::string>();
    for (const char* name : {"torch", "torch_tpu"}) {
      const auto path = py::module_::import(name).attr("__file__").cast<std::string>();
      found->push_back(path.substr(0, path.rfind('/') + 1));
    }
    return found;
  }();
  if (file.starts_with("<frozen")) return true;
  return std::any_of(folders->begin(), folders->end(),
                     [&](const auto& folder) { return file.starts_with(folder); });
}

// The innermost frame outside the libraries; "" from a thread that runs no Python.
std::pair<std::string, int> user_line() {
  std::pair<std::string, int> line{"", 0};
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    const bool library = file == nullptr || is_library(file);
    if (!library) line = {file ? file : "", PyFrame_GetLineNumber(frame)};
    Py_DECREF(code);
    PyFrameObject* outer = library ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = outer;
  }
  return line;
}

py::dict snapshot() {
  const auto& m = metrics();
  py::dict result;
  result["ops"] = m.ops.load();
  result["plan_hits"] = m.plan_hits.load();
  result["plan_misses"] = m.plan_misses.load();
  result["programs_run"] = m.programs_run.load();
  result["programs_dropped"] = m.programs_dropped.load();
  result["values_shared"] = m.values_shared.load();
  result["values_copied"] = m.values_copied.load();
  result["bytes_to_device"] = m.bytes_to_device.load();
  result["bytes_from_device"] = m.bytes_from_device.load();
  result["fallbacks"] = fallbacks();
  py::dict lines;
  for (const auto& [line, count] : synchronizations()) lines[py::make_tuple(line.first, line.second)] = count;
  result["synchronizations"] = lines;
  return result;
}

void reset() {
  auto& m = metrics();
  for (auto* counter : {&m.ops, &m.plan_hits, &m.plan_misses, &m.programs_run, &m.programs_dropped,
                        &m.values_shared, &m.values_copied, &m.bytes_to_device, &m.bytes_from_device}) {
    counter->store(0);
  }
  fallbacks().clear();
  synchronizations().clear();
}

}  // namespace

Metrics& metrics() {
  static Metrics counters;
  return counters;
}

void count_synchronization() { synchronizations()[user_line()] += 1; }

void count_fallback(const char* name) { fallbacks()[name] += 1; }

void bind_metrics(py::module_& m) {
  m.def("metrics_snapshot", &snapshot);
  m.def("metrics_reset", &reset);
  m.def("user_line", &user_line);
}

}  // namespace torch_tpu
