#include "profiler.h"

#include <c10/util/ApproximateClock.h>
#include <kineto/IActivityProfiler.h>
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>

#include "events.h"
#include "guard.h"
#include "python_error.h"
#include "registration.h"

namespace py = pybind11;

namespace torch_tpu {

std::atomic<bool> profiling{false};

int64_t monotonic_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

namespace {

using libkineto::ActivityType;

// A program that was started: what it is, for which op, and the stamp of its completion.
struct Started {
  std::string name;
  c10::DeviceIndex device;
  int64_t start;
  uint64_t correlation;
  PyObject* stamp;
};

// Programs of the profile being taken. The GIL guards it.
std::vector<Started>& started() {
  static auto* all = new std::vector<Started>();
  return *all;
}

// The profiler's ids of the ops that are running on this thread, innermost last.
thread_local std::vector<uint64_t> correlations;

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    profiling = true;
  }
  void stop() override {
    profiling = false;
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }
  void pushCorrelationId(uint64_t id) override { correlations.push_back(id); }
  void popCorrelationId() override {
    if (!correlations.empty()) correlations.pop_back();
  }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, 0);
  }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback op_of, int64_t,
                    int64_t) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "TPU");
    Gil gil;
    const int64_t to_wall_clock = c10::getTime() - monotonic_ns();
    std::array<int64_t, kMaxDevices> free_at{};
    for (const auto& program : started()) add(program, to_wall_clock, free_at[program.device], op_of);
    started().clear();
    for (const auto& activity : buffer_->activities) activity->log(logger);
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

 private:
  // A device runs one program after the other: each begins when it was started or when the one before ended.
  void add(const Started& program, int64_t to_wall_clock, int64_t& free_at,
           const libkineto::getLinkedActivityCallback& op_of) {
    const auto stamp = py::reinterpret_steal<py::object>(program.stamp);
    const int64_t end = stamp.attr("wait")().cast<int64_t>();
    const int64_t begin = std::min(end, std::max(program.start, free_at));
    free_at = end;
    buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, program.name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = begin + to_wall_clock;
    activity.endTime = end + to_wall_clock;
    activity.id = static_cast<int32_t>(program.correlation);
    activity.device = program.device;
    activity.linked = op_of(activity.id);
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    if (!wanted.count(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                 const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "tpu";
  const std::set<ActivityType> activities_{ActivityType::CONCURRENT_KERNEL};
};

// The older way to time ops, without a trace: torch.autograd.profiler.profile(use_device="tpu",
// use_kineto=False).
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using EventStub = torch::profiler::impl::ProfilerVoidEventStub;

  void record(c10::DeviceIndex* device, EventStub* event, int64_t* cpu_ns) const override {
    const auto index = current_device();
    auto made = std::make_shared<Event>(index, /*timing=*/true);
    if (device != nullptr) *device = index;
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    made->record();
    *event = made;
  }
  float elapsed(const EventStub* start, const EventStub* end) const override {
    const int64_t from = static_cast<Event*>(start->get())->done_ns();
    return static_cast<float>(static_cast<Event*>(end->get())->done_ns() - from) / 1e3f;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override {
    const int count = device_count();
    for (int device = 0; device < count; ++device) visit(device);
  }
  void synchronize() const override { synchronize_device(current_device()); }
};

}  // namespace

void profile_program(const std::string& name, c10::DeviceIndex device, int64_t start,
                     c10::ArrayRef<PyObject*> results) {
  py::list arrays;
  for (PyObject* result : results) arrays.append(py::handle(result));
  const auto events = py::module_::import("torch_tpu.runtime.events");
  auto stamp = events.attr("stamp")(static_cast<int>(device), arrays);
  const uint64_t op = correlations.empty() ? 0 : correlations.back();
  started().push_back({name, device, start, op, stamp.release().ptr()});
}

void register_profiler() {
  torch::profiler::impl::registerPrivateUse1Methods(new Stubs());
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

}  // namespace torch_tpu
