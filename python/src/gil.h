// The GIL, taken and given up as nanobind's scopes do, by threads that the end of the interpreter
// may find in the middle of C++.
//
// A thread that asks for the GIL once the interpreter ends never gets it. Before Python 3.14
// CPython ends such a thread with pthread_exit, which unwinds its stack; a destructor may not be
// unwound, so the process aborts with "terminate called without an active exception" although all
// went well. From 3.14 on CPython lets the thread wait for ever, and so do these scopes on every
// version: the process ends without it.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace varve::python {

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

/// Takes the GIL, and gives it up in the destructor. Any thread, with the GIL or without.
class GilHeld {
 public:
  GilHeld() : state_(UntilTheInterpreterEnds([] { return PyGILState_Ensure(); })) {}
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace varve::python
