// The signals are blocked in all threads, and one thread waits for them: requesting stop takes a
// lock and calls functions, which a signal handler must not do.

#include "interrupt.h"

#include <system_error>

#include <pthread.h>
#include <unistd.h>

#include "command.h"

namespace varve::cli {
namespace {

// Sent by the destructor to its own thread.
constexpr int kWakeUp = SIGUSR1;

bool IsIgnored(int signal) {
  struct sigaction action{};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Interrupt::Interrupt() {
  ::sigemptyset(&waited_);
  ::sigaddset(&waited_, kWakeUp);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!IsIgnored(signal)) {
      ::sigaddset(&waited_, signal);
    }
  }
  ::pthread_sigmask(SIG_BLOCK, &waited_, &before_);
  try {
    thread_ = std::thread([this] { Wait(); });
  } catch (const std::system_error&) {
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);  // Signals end the process, as without this.
  }
}

Interrupt::~Interrupt() {
  if (!thread_.joinable()) {
    return;
  }
  done_ = true;
  ::pthread_kill(thread_.native_handle(), kWakeUp);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Interrupt::Wait() {
  while (true) {
    int signal = 0;
    if (::sigwait(&waited_, &signal) != 0) {
      continue;
    }
    if (done_) {
      return;
    }
    if (signal == kWakeUp) {
      continue;  // From another process.
    }
    if (signal_ != 0) {
      ::_exit(kExitSignal + signal);
    }
    signal_ = signal;
    stop_.request_stop();
  }
}

}  // namespace varve::cli
