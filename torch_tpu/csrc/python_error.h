// Errors that cross from Python into C++.
#pragma once

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <string>
#include <thread>

#include "guard.h"

namespace torch_tpu {

// Calls `take`, which takes the GIL. While Python shuts down, up to 3.13 it ends the threads that want the
// GIL by unwinding them, which aborts the process in the first destructor met, ours or PyTorch's. Here such a
// thread waits for the end of the process instead, as from 3.14 on.
template <class F>
auto take_gil(F take) {
  struct Unwound {
    ~Unwound() {
      while (!taken) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    bool taken = false;
  } unwound;
  auto result = take();
  unwound.taken = true;
  return result;
}

// Takes the GIL; an error instead of a crash when the interpreter is gone, and instead of a deadlock in a
// process that was forked from one that used the device.
class Gil {
 public:
  Gil() {
    check_fork();
    TORCH_CHECK(Py_IsInitialized(), "the tpu device was used after Python has shut down");
    state_ = take_gil(PyGILState_Ensure);
  }
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Releases the GIL where this thread holds it: a thread that waits for a lock of ours must not keep it.
class NoGil {
 public:
  NoGil() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~NoGil() {
    if (state_ == nullptr) return;
    take_gil([this] { return PyEval_RestoreThread(state_), true; });
  }
  NoGil(const NoGil&) = delete;
  NoGil& operator=(const NoGil&) = delete;

 private:
  PyThreadState* state_;
};

// The message of the Python error that was caught. The GIL must be held.
inline std::string message_of(const pybind11::error_already_set& error) {
  return pybind11::str(error.value()).cast<std::string>();
}

}  // namespace torch_tpu
