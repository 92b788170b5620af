// The trace is the JSON array of events that Chrome's tracing began and Perfetto reads, which may
// lack its closing bracket. So every process of a job appends whole lines to one file, and a
// process that is killed leaves a file that opens. Times are those of the system's clock, by which
// the processes of a node agree.

#include "base/trace.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/events.h"
#include "base/guarded.h"
#include "base/of_process.h"

namespace varve {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::size_t kMostBuffered = std::size_t{256} << 10;

/// Returns where VARVE_TRACE says, as it is at the first call; %p stands for the process.
std::string TraceFile() {
  const char* const given = std::getenv("VARVE_TRACE");
  // Of the process that began: it may change its directory later.
  static const std::string* const start = [] {
    char* const here = ::getcwd(nullptr, 0);
    auto* const made = new std::string(here == nullptr ? "" : here);
    ::free(here);  // NOLINT(cppcoreguidelines-no-malloc,cppcoreguidelines-owning-memory): getcwd's
    return made;
  }();
  std::string path = given != nullptr ? given : "";
  if (const std::size_t at = path.find("%p"); at != std::string::npos) {
    path.replace(at, 2, std::to_string(::getpid()));
  }
  return path.empty() || path.front() == '/' ? path : *start + '/' + path;
}

/// Appends a number with three digits behind the point, whatever the locale.
void AppendNumber(double number, std::string* out) {
  std::array<char, 64> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed, 3);
  out->append(text.data(), end.ptr);
}

/// Makes the file with its first line, in one step: processes append as soon as it is there.
void MakeTraceFile(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) {
    return;
  }
  const std::string part = path + "." + std::to_string(::getpid()) + ".part";
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return;  // Opening the file itself says why.
  }
  const bool written = ::write(fd, "[\n", 2) == 2;
  ::close(fd);
  if (written) {
    (void)::link(part.c_str(), path.c_str());  // Fails where another process was faster.
  }
  ::unlink(part.c_str());
}

class Trace {
 public:
  /// Returns that of this process. A forked child begins one of its own: its parent's lock may be
  /// held, and what its parent has recorded is not its own.
  static Trace& Get() {
    static auto& of_process = *new OfProcess<Trace>();  // Threads may trace while it exits.
    return of_process.Get();
  }

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
    static thread_local const auto thread = ::syscall(SYS_gettid);
    std::string line = R"({"ph":"X","cat":"varve","name":")";
    line.append(name).append(R"(","pid":)").append(std::to_string(process_));
    line.append(R"(,"tid":)").append(std::to_string(thread)).append(R"(,"ts":)");
    AppendNumber(micros(start - steady_zero_) + unix_zero_us_, &line);
    line.append(R"(,"dur":)");
    AppendNumber(micros(end - start), &line);
    line.append(R"(,"args":{"bytes":)").append(std::to_string(bytes)).append("}},\n");
    bool is_much = false;
    {
      const std::scoped_lock lock(mutex_);
      if (failed_) {
        return;
      }
      buffer_ += line;
      is_much = buffer_.size() > kMostBuffered;
    }
    if (is_much) {
      Flush();
    }
  }

  /// Appends what is buffered, in one write: lines of other processes stay whole. Other threads
  /// record meanwhile.
  void Flush() {
    std::string text;
    {
      const std::scoped_lock lock(mutex_);
      text.swap(buffer_);
    }
    if (text.empty()) {
      return;
    }
    MakeTraceFile(path_);
    errno = ENOSPC;  // Of a write that is cut short.
    const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    const auto written = fd < 0 ? -1 : ::write(fd, text.data(), text.size());
    const bool fails = written != static_cast<ssize_t>(text.size());
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    const std::scoped_lock lock(mutex_);
    if (fails && !std::exchange(failed_, true)) {
      ReportEvent({.level = EventLevel::kWarning,
                   .message = "VARVE_TRACE: cannot write " + path_ + ": " + std::strerror(error) +
                              "; this process traces no more"});
    }
  }

 private:
  const std::string path_ = TraceFile();
  const pid_t process_ = ::getpid();
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
  static const bool on = [] {
    const char* const given = std::getenv("VARVE_TRACE");
    const bool is_given = given != nullptr && *given != '\0';
    if (is_given) {
      (void)Guarded([] { (void)Trace::Get(); });  // Looks where it is to be.
    }
    return is_given;
  }();
  return on;
}

void FlushTraceOf(int rank) {
  if (IsTraced()) {
    (void)Guarded([&] {
      Trace::Get().Name("rank " + std::to_string(rank), rank);
      Trace::Get().Flush();
    });
  }
}

void FlushTraceOfAgent() {
  if (IsTraced()) {
    (void)Guarded([] {
      Trace::Get().Name("agent", std::numeric_limits<int>::max());
      Trace::Get().Flush();
    });
  }
}

void Slice::Record() noexcept {
  (void)Guarded([&] { Trace::Get().Add(name_, start_, Steady::now(), bytes_); });
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
  (void)Guarded([&] { phases->push_back(std::move(phase)); });
}

}  // namespace varve
