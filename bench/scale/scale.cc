// Measures what grows with the number of ranks. Two tables, of the first save of a job and of a
// later one: messages and bytes at rank 0 and at one rank, their CPU time and memory, the manifest,
// the time to open it; and the exponents of a fit.
//
// Rank 0 is a process that runs the real Save. Its coordinator gets each message from a second
// process, which is all other ranks, one after the other: each runs the real Save too, once up to
// exchange A, for its plan, and once with the reply of rank 0, writing its file, up to exchange B.
// One rank of them, in the middle, is a third process, so that it can be measured. So everything is
// real but the network, and every rank but those two shares a process with others. The CPU time of
// rank 0 is without that of these messages: `channels` measures how the ranks of a job send them.
//
//   scale [--dir DIR] [--tensors N] [--ranks N,N,...]

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "pipe.h"
#include "ranks.h"
#include "state.h"

namespace varve::scale {
namespace {

using Clock = std::chrono::steady_clock;

/// CPU and memory of a process.
struct Cost {
  double cpu_seconds = 0;
  double rss_mib = 0;
};

/// Measures this process from its making on. Memory is the peak of that time.
class Meter {
 public:
  Meter() : before_(CpuSeconds()) {
    std::ofstream("/proc/self/clear_refs") << "5";  // The peak begins anew.
  }
  [[nodiscard]] Cost cost() const {
    std::ifstream status("/proc/self/status");
    double kib = 0;
    for (std::string word; status >> word;) {
      if (word == "VmHWM:") {
        status >> kib;
      }
    }
    return {CpuSeconds() - before_, kib / 1024};
  }

 private:
  static double CpuSeconds() {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  double before_;
};

/// Adds the CPU time of this thread, from its making to its end, to a sum.
class Apart {
 public:
  explicit Apart(double* seconds) : seconds_(seconds), begin_(Now()) {}
  ~Apart() { *seconds_ += Now() - begin_; }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  static double Now() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  double* seconds_;
  double begin_;
};

/// One line of the table. Trivial: it comes through a pipe.
struct Row {
  double ranks = 0;
  double messages_in = 0, mib_in = 0, messages_out = 0, mib_out = 0;
  double call_cpu_ms = 0;  // Of rank 0, until all ranks have their shares.
  Cost rank0;
  double one_bytes_out = 0, one_bytes_in = 0;
  Cost one;
  double manifest_mib = 0, open_ms = 0, open_cpu_ms = 0;
};

constexpr std::uint64_t kSaves = 2;
using Rows = std::array<Row, kSaves>;  // Of the first save, and of a later one.

// ---- the process that is all other ranks ----

enum class Ask : std::uint8_t { kPlan, kReply, kReceipt };

/// Runs this program as one rank, until its input ends: of each save the plan is asked for by an
/// empty message, and the receipt, whose cost follows it, by the reply to the plan.
[[noreturn]] void RunOneRank(const Job& job, std::uint64_t rank) {
  OneRank one(job, rank);
  for (std::uint64_t save = 1; save <= kSaves; ++save) {
    Take(STDIN_FILENO);
    Put(STDOUT_FILENO, one.MessageOf(save, std::nullopt));
    std::string reply = Take(STDIN_FILENO);
    const Meter meter;
    Put(STDOUT_FILENO, one.MessageOf(save, std::move(reply)));
    const Cost cost = meter.cost();
    WriteAll(STDOUT_FILENO, &cost, sizeof(cost));
  }
  std::_Exit(0);
}

/// A rank in a process of its own.
class MeasuredRank {
 public:
  MeasuredRank(const Job& job, std::uint64_t rank) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    if (::pipe(to.data()) != 0 || ::pipe(from.data()) != 0) {
      Die("no pipe");
    }
    if (::fork() == 0) {
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      for (const int fd : {to[0], to[1], from[0], from[1]}) {
        ::close(fd);
      }
      const std::string number = std::to_string(rank);
      const std::string ranks = std::to_string(job.ranks);
      const std::string tensors = std::to_string(job.tensors);
      ::execl("/proc/self/exe", "scale", "--one", number.c_str(), ranks.c_str(), tensors.c_str(),
              job.path.c_str(), nullptr);
      Die("cannot run itself");
    }
    ::close(to[0]);
    ::close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }

  std::string Plan() {
    Put(to_, {});
    return Take(from_);
  }
  /// Returns the receipt, and what the save has cost the rank.
  std::string Receipt(const std::string& reply, Cost* cost) {
    Put(to_, reply);
    std::string receipt = Take(from_);
    if (!ReadAll(from_, cost, sizeof(*cost))) {
      Die("a process of the simulation has ended");
    }
    return receipt;
  }

 private:
  int to_ = -1;
  int from_ = -1;
};

std::uint64_t MeasuredNumber(const Job& job) { return job.ranks / 2; }

/// Answers requests until the pipe ends. At the end of each save reports the cost of the measured
/// rank.
[[noreturn]] void RunOtherRanks(const Job& job, int asker) {
  std::vector<std::unique_ptr<OneRank>> ranks;
  for (std::uint64_t rank = 0; rank < job.ranks; ++rank) {
    ranks.push_back(std::make_unique<OneRank>(job, rank));
  }
  MeasuredRank measured(job, MeasuredNumber(job));
  std::map<std::uint64_t, std::string> replies;
  Cost cost;
  std::array<std::uint64_t, 3> question{};
  while (ReadAll(asker, question.data(), sizeof(question))) {
    const std::uint64_t rank = question[1];
    const std::uint64_t save = question[2];
    const bool is_measured = rank == MeasuredNumber(job);
    switch (static_cast<Ask>(question[0])) {
      case Ask::kPlan:
        Put(asker, is_measured ? measured.Plan() : ranks[rank]->MessageOf(save, std::nullopt));
        break;
      case Ask::kReply: replies[rank] = Take(asker); break;
      case Ask::kReceipt: {
        const std::string reply = replies.extract(rank).mapped();
        Put(asker,
            is_measured ? measured.Receipt(reply, &cost) : ranks[rank]->MessageOf(save, reply));
        if (rank == job.ranks - 1) {
          WriteAll(asker, &cost, sizeof(cost));
        }
        break;
      }
    }
  }
  std::_Exit(0);
}

// ---- rank 0 ----

class RankZero final : public Coordinator {
 public:
  RankZero(const Job& job, int others)
      : job_(job), others_(others), received_(job.ranks), sent_(job.ranks) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return static_cast<int>(job_.ranks); }

  /// Begins the save of a number, which `row` describes and `meter` measures.
  void Begin(std::uint64_t save, const Meter& meter, Row* row) {
    save_ = save;
    meter_ = &meter;
    row_ = row;
    received_.assign(job_.ranks, 0);
    sent_.assign(job_.ranks, 0);
    apart_ = 0;
  }
  /// Returns the CPU time of this save's messages.
  [[nodiscard]] double apart() const { return apart_; }

  Status Send(int to, std::string_view message, Deadline /*deadline*/) override {
    const Apart apart(&apart_);
    const auto rank = static_cast<std::uint64_t>(to);
    Count(rank, message, &row_->messages_out, &row_->mib_out, &row_->one_bytes_in);
    if (sent_[rank]++ == 0) {  // Exchange A, of which one is enough. The reply of B is only an end.
      AskFor(Ask::kReply, rank);
      Put(others_, message);
      if (rank == job_.ranks - 1) {
        row_->call_cpu_ms = (meter_->cost().cpu_seconds - apart_) * 1000;
      }
    }
    return Status::Ok();
  }

  Result<std::string> Receive(int from, Deadline /*deadline*/) override {
    const Apart apart(&apart_);
    const auto rank = static_cast<std::uint64_t>(from);
    AskFor(received_[rank]++ == 0 ? Ask::kPlan : Ask::kReceipt, rank);
    std::string message = Take(others_);
    Count(rank, message, &row_->messages_in, &row_->mib_in, &row_->one_bytes_out);
    if (received_[rank] == 2 && rank == job_.ranks - 1) {
      ReadAll(others_, &row_->one, sizeof(row_->one));
    }
    return message;
  }

 private:
  void AskFor(Ask what, std::uint64_t rank) const {
    const std::array<std::uint64_t, 3> question{static_cast<std::uint64_t>(what), rank, save_};
    WriteAll(others_, question.data(), sizeof(question));
  }
  void Count(std::uint64_t rank, std::string_view message, double* messages, double* mib,
             double* one) const {
    ++*messages;
    *mib += static_cast<double>(message.size()) / (1 << 20);
    if (rank == MeasuredNumber(job_)) {
      *one += static_cast<double>(message.size());
    }
  }

  const Job job_;
  const int others_;
  std::uint64_t save_ = 0;
  const Meter* meter_ = nullptr;
  Row* row_ = nullptr;
  std::vector<int> received_;
  std::vector<int> sent_;
  double apart_ = 0;
};

/// Runs rank 0 in a process of its own, so that its peak of memory is that of its saves.
Rows RunRankZero(const Job& job) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) {
    Die("no socket");
  }
  if (::fork() == 0) {
    ::close(ends[0]);
    RunOtherRanks(job, ends[1]);
  }
  ::close(ends[1]);
  const std::vector<float> memory = MakeMemory(job);
  RankZero coordinator(job, ends[0]);
  Rows rows;
  for (std::uint64_t save = 1; save <= kSaves; ++save) {
    Row& row = rows[save - 1];
    row.ranks = static_cast<double>(job.ranks);
    const Meter meter;
    coordinator.Begin(save, meter, &row);
    const auto in_step = MakeInStep({std::shared_ptr<void>(), &coordinator});
    const auto saved = Save(StateOf(job, 0, save, memory), PathOf(job, save), LongSave(), *in_step);
    if (!saved.ok()) {
      Die(saved.status().message());
    }
    row.rank0 = meter.cost();
    row.rank0.cpu_seconds -= coordinator.apart();
  }
  ::close(ends[0]);
  return rows;
}

/// Runs `work` in a process that begins with this one's small memory.
template <class Work, class Made>
void InChild(const Work& work, Made* out) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    Die("no pipe");
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const Made made = work();
    WriteAll(ends[1], &made, sizeof(made));
    std::_Exit(0);
  }
  ::close(ends[1]);
  if (!ReadAll(ends[0], out, sizeof(*out))) {
    std::_Exit(1);  // The child has printed the cause.
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
}

/// Opens the checkpoint of a save in a process of its own, and notes what that costs.
void OpenIn(const Job& job, std::uint64_t save, Row* row) {
  const std::string path = PathOf(job, save);
  row->manifest_mib =
      static_cast<double>(std::filesystem::file_size(path + "/manifest.bin")) / (1 << 20);
  Row opened;
  InChild(
      [&] {
        const Meter meter;
        const auto begin = Clock::now();
        const auto reader = CheckpointReader::Open(path);
        if (!reader.ok() || (*reader)->metadata().tensors.size() != job.tensors ||
            (*reader)->metadata().files.size() != job.ranks) {
          Die("the checkpoint is not what was saved: " + reader.status().message());
        }
        Row timed;
        timed.open_ms = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
        timed.open_cpu_ms = meter.cost().cpu_seconds * 1000;
        return timed;
      },
      &opened);
  row->open_ms = opened.open_ms;
  row->open_cpu_ms = opened.open_cpu_ms;
}

Rows RunJob(const Job& job) {
  Rows rows;
  InChild([&] { return RunRankZero(job); }, &rows);
  for (std::uint64_t save = 1; save <= kSaves; ++save) {
    OpenIn(job, save, &rows[save - 1]);
  }
  return rows;
}

// ---- the table ----

struct Column {
  const char* title;
  int width;
  int digits;
  double (*value)(const Row&);
};

constexpr auto kColumnsShown = std::to_array<Column>({
    {"ranks", 6, 0, [](const Row& r) { return r.ranks; }},
    {"msgs in", 8, 0, [](const Row& r) { return r.messages_in; }},
    {"MiB in", 8, 2, [](const Row& r) { return r.mib_in; }},
    {"MiB out", 8, 2, [](const Row& r) { return r.mib_out; }},
    {"call ms", 9, 2, [](const Row& r) { return r.call_cpu_ms; }},
    {"CPU s", 8, 3, [](const Row& r) { return r.rank0.cpu_seconds; }},
    {"RSS MiB", 8, 1, [](const Row& r) { return r.rank0.rss_mib; }},
    {"1: B out", 9, 0, [](const Row& r) { return r.one_bytes_out; }},
    {"B in", 8, 0, [](const Row& r) { return r.one_bytes_in; }},
    {"CPU ms", 8, 1, [](const Row& r) { return r.one.cpu_seconds * 1000; }},
    {"RSS MiB", 8, 1, [](const Row& r) { return r.one.rss_mib; }},
    {"manifest MiB", 13, 3, [](const Row& r) { return r.manifest_mib; }},
    {"open ms", 8, 2, [](const Row& r) { return r.open_ms; }},
    {"CPU ms", 8, 2, [](const Row& r) { return r.open_cpu_ms; }},
});

/// Returns the slope of log(value) over log(ranks), by least squares.
double Exponent(const std::vector<Row>& rows, double (*value)(const Row&)) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const Row& row : rows) {
    if (value(row) > 0) {
      const double a = std::log(row.ranks);
      const double b = std::log(value(row));
      n += 1, x += a, y += b, xx += a * a, xy += a * b;
    }
  }
  const double spread = n * xx - x * x;
  return spread > 0 ? (n * xy - x * y) / spread : std::nan("");
}

void Print(const std::vector<Row>& rows) {
  for (const Column& column : kColumnsShown) {
    std::printf("%*s", column.width, column.title);
  }
  std::printf("\n");
  for (const Row& row : rows) {
    for (const Column& column : kColumnsShown) {
      std::printf("%*.*f", column.width, column.digits, column.value(row));
    }
    std::printf("\n");
  }
  std::printf("%6s", "~ N^");
  for (std::size_t i = 1; i < kColumnsShown.size(); ++i) {
    std::printf("%*.2f", kColumnsShown[i].width, Exponent(rows, kColumnsShown[i].value));
  }
  std::printf("\n");
}

int Main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--one") == 0) {
    RunOneRank({std::stoull(argv[3]), std::stoull(argv[4]), argv[5]}, std::stoull(argv[2]));
  }
  std::string place = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
  std::uint64_t tensors = 16;
  std::vector<std::uint64_t> worlds = {8, 32, 128, 512, 2048, 8192, 16384};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    if (option == "--dir") {
      place = argv[i + 1];
    } else if (option == "--tensors") {
      tensors = std::stoull(argv[i + 1]);
    } else if (option == "--ranks") {
      worlds.clear();
      std::stringstream list(argv[i + 1]);
      for (std::string world; std::getline(list, world, ',');) {
        worlds.push_back(std::stoull(world));
      }
    } else {
      Die("unknown option " + option + "; want --dir DIR, --tensors N or --ranks N,N,...");
    }
  }
  const std::string folder = place + "/varve-scale-" + std::to_string(::getpid());
  std::vector<Row> first;
  std::vector<Row> later;
  for (const std::uint64_t ranks : worlds) {
    if (ranks < 2) {
      Die("--ranks: at least 2");
    }
    const Rows rows = RunJob({ranks, tensors, folder + "/of-" + std::to_string(ranks)});
    first.push_back(rows.front());
    later.push_back(rows.back());
    std::filesystem::remove_all(folder);
  }
  std::printf("%llu tensors, each sharded over all ranks; rank 0, then one rank; first save\n",
              static_cast<unsigned long long>(tensors));
  Print(first);
  std::printf("a later save\n");
  Print(later);
  return 0;
}

}  // namespace
}  // namespace varve::scale

int main(int argc, char** argv) { return varve::scale::Main(argc, argv); }
