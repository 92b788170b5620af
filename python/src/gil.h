// The GIL, taken and given up as nanobind's scopes do, by threads that the end of the interpreter
// may find in the middle of C++.
//
// A thread that asks for the GIL once the interpreter ends never gets it. Before Python 3.14
// CPython ends such a thread with pthread_exit, which unwinds its stack; a destructor may not be
// unwound, so the process aborts with "terminate called without an active exception" although all
// went well. From 3.14 on CPython lets the thread wait for ever, and so do these scopes on every
// version: the process ends without it.
//
// A thread of C++ that asks for the GIL needs a state of Python's, which CPython puts into its list
// of threads under a lock of that list and not under the GIL. A fork meanwhile gives the child that
// lock, locked, and the child waits for it for ever (3.11). So no fork of Python's begins while
// such a state is made: os.fork takes StateMutex first. From 3.13 on it then takes the list's lock.
// The state is destroyed under the GIL, which the fork needs too.
#pragma once

#include <mutex>

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#ifdef Py_LIMITED_API
// Every CPython since 3.2 exports it, and its headers hide it from modules of the stable ABI.
extern "C" void PyThreadState_DeleteCurrent();
#endif

namespace varve::python {

namespace nb = nanobind;

/// Waits until the process ends.
[[noreturn]] inline void WaitForTheEnd() {
  for (;;) {
    ::pause();
  }
}

/// Runs `call`, which may take the GIL; does not return where the interpreter ends meanwhile.
template <class Call>
auto UntilTheInterpreterEnds(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    WaitForTheEnd();
  }
}

/// Gives up the GIL, and takes it again in the destructor. Requires: the GIL.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    UntilTheInterpreterEnds([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

/// Returns the interpreter that has loaded this module. The first call needs the GIL.
inline PyInterpreterState* TheInterpreter() {
  static PyInterpreterState* const interpreter = PyInterpreterState_Get();
  return interpreter;
}

/// Held while a thread gets its state, and by os.fork: see HoldOffForks.
inline std::mutex& StateMutex() {
  static auto* const mutex = new std::mutex;  // Never destroyed: threads ask at any time.
  return *mutex;
}

/// Lets forks of Python's wait for StateMutex. Requires: the GIL; to be called once.
inline void HoldOffForks() {
  const auto unlock = nb::cpp_function([] { StateMutex().unlock(); });
  nb::module_::import_("os").attr("register_at_fork")(
      nb::arg("before") = nb::cpp_function([] { StateMutex().lock(); }),
      nb::arg("after_in_parent") = unlock, nb::arg("after_in_child") = unlock);
}

/// Takes the GIL, and gives it up in the destructor. Any thread, with the GIL or without.
class GilHeld {
 public:
  GilHeld() {
    if (PyGILState_GetThisThreadState() != nullptr) {
      state_ = UntilTheInterpreterEnds([] { return PyGILState_Ensure(); });
      return;
    }
    {
      const std::scoped_lock no_fork(StateMutex());
      made_ = PyThreadState_New(TheInterpreter());
    }
    UntilTheInterpreterEnds([this] { PyEval_AcquireThread(made_); });
  }
  ~GilHeld() {
    if (made_ == nullptr) {
      PyGILState_Release(state_);
      return;
    }
    PyThreadState_Clear(made_);
    PyThreadState_DeleteCurrent();
  }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyThreadState* made_ = nullptr;  ///< Of a thread that had no state.
  PyGILState_STATE state_{};       ///< Of one that had.
};

}  // namespace varve::python
