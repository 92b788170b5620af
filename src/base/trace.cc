// The trace is the JSON array of events that Chrome's tracing began and Perfetto reads, which may
// lack its closing bracket. So every process of a job appends whole lines to one file, and a
// process that is killed leaves a file that opens. Times are those of the system's clock, by which
// the processes of a node agree.

#include "base/trace.h"

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/events.h"
#include "base/guarded.h"

namespace varve {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kMostBuffered = std::size_t{256} << 10;

/// Returns where VARVE_TRACE says, as it is at the first call; %p stands for the process.
std::string TraceFile() {
  const char* const given = std::getenv("VARVE_TRACE");
  std::string path = given != nullptr ? given : "";
  if (const std::size_t at = path.find("%p"); at != std::string::npos) {
    path.replace(at, 2, std::to_string(::getpid()));
  }
  if (!path.empty() && path.front() != '/') {
    if (char* const here = ::getcwd(nullptr, 0); here != nullptr) {
      path = std::string(here) + '/' + path;
      ::free(
          here);  // NOLINT(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): getcwd's
    }
  }
  return path;
}

class Trace {
 public:
  static Trace& Get() {
    static auto* const trace = new Trace;
    return *trace;
  }

  [[nodiscard]] bool on() const { return !path_.empty(); }

  /// Processes with smaller numbers are shown first.
  void Name(const std::string& name, int number) {
    const std::scoped_lock lock(mutex_);
    if (!std::exchange(named_, true)) {
      const std::string process = std::to_string(::getpid());
      const auto meta = [&](const char* what, const std::string& arguments) {
        buffer_ += std::string(R"({"ph":"M","name":")") + what + R"(","pid":)" + process +
                   R"(,"args":{)" + arguments + "}},\n";
      };
      meta("process_name", R"("name":")" + name + "\"");
      meta("process_sort_index", R"("sort_index":)" + std::to_string(number));
    }
  }

  void Add(const char* name, Steady::time_point start, Steady::time_point end,
           std::uint64_t bytes) {
    const auto micros = [](Steady::duration time) {
      return std::chrono::duration<double, std::micro>(time).count();
    };
    static thread_local const long thread = ::syscall(SYS_gettid);  // NOLINT(google-runtime-int)
    char line[256];                                                 // NOLINT: snprintf's
    const int size = std::snprintf(
        line, sizeof(line),
        R"({"ph":"X","name":"%s","cat":"varve","pid":%d,"tid":%ld,"ts":%.3f,"dur":%.3f,)"
        R"("args":{"bytes":%llu}},)"
        "\n",
        name, ::getpid(), thread, micros(start - steady_zero_) + unix_zero_us_, micros(end - start),
        static_cast<unsigned long long>(bytes));  // NOLINT(google-runtime-int)
    const std::scoped_lock lock(mutex_);
    buffer_.append(line, static_cast<std::size_t>(size));
    if (buffer_.size() > kMostBuffered) {
      WriteOut();
    }
  }

  void Flush() {
    const std::scoped_lock lock(mutex_);
    WriteOut();
  }

 private:
  /// Appends what is buffered, in one write: lines of other processes stay whole.
  void WriteOut() {
    if (buffer_.empty() || failed_) {
      return;
    }
    // Only the process that makes the file writes its first line.
    if (const int made = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        made >= 0) {
      (void)!::write(made, "[\n", 2);
      ::close(made);
    }
    const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    failed_ = fd < 0 || ::write(fd, buffer_.data(), buffer_.size()) < 0;
    if (failed_) {
      ReportEvent(
          {.level = EventLevel::kWarning,
           .message = "VARVE_TRACE: cannot write " + path_ + "; this process traces no more"});
    }
    if (fd >= 0) {
      ::close(fd);
    }
    buffer_.clear();
  }

  const std::string path_ = TraceFile();
  const Steady::time_point steady_zero_ = Steady::now();
  const double unix_zero_us_ =
      std::chrono::duration<double, std::micro>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  std::mutex mutex_;  // Guards all below.
  std::string buffer_;
  bool named_ = false;
  bool failed_ = false;
};

}  // namespace

bool IsTraced() {
  static const bool on = Trace::Get().on();
  return on;
}

void FlushTraceOf(int rank) {
  if (IsTraced()) {
    (void)Guarded([&] {
      Trace::Get().Name("rank " + std::to_string(rank), rank);
      Trace::Get().Flush();
      return Status::Ok();
    });
  }
}

void FlushTraceOfAgent() {
  if (IsTraced()) {
    (void)Guarded([] {
      Trace::Get().Name("agent", std::numeric_limits<int>::max());
      Trace::Get().Flush();
      return Status::Ok();
    });
  }
}

void Slice::Record() noexcept {
  (void)Guarded([&] {
    Trace::Get().Add(name_, start_, Steady::now(), bytes_);
    return Status::Ok();
  });
}

PhaseTimer::PhaseTimer(std::vector<Phase>* phases, const char* name, std::uint64_t bytes)
    : phases_(phases), name_(name), bytes_(bytes), slice_(name, bytes) {}

void PhaseTimer::SetBytes(std::uint64_t bytes) {
  bytes_ = bytes;
  slice_.SetBytes(bytes);
}

PhaseTimer::~PhaseTimer() {
  if (phases_ != nullptr) {
    (void)Guarded([&] {
      const std::chrono::duration<double> seconds = Now() - start_;
      AddPhase(phases_, {.name = name_, .seconds = seconds.count(), .bytes = bytes_});
      return Status::Ok();
    });
  }
}

void AddPhase(std::vector<Phase>* phases, Phase phase) {
  for (Phase& known : *phases) {
    if (known.name == phase.name) {
      known.seconds += phase.seconds;
      known.bytes += phase.bytes;
      if (phase.slowest_rank && phase.slowest_seconds > known.slowest_seconds) {
        known.slowest_rank = phase.slowest_rank;
        known.slowest_seconds = phase.slowest_seconds;
      }
      return;
    }
  }
  (void)Guarded([&] {
    phases->push_back(std::move(phase));
    return Status::Ok();
  });
}

}  // namespace varve
