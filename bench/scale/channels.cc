// Measures what the channel between ranks costs rank 0, with all ranks as threads of this process and real sockets.
//
//   channels [--ranks 256,1024,4096] [--fan-out 0,32] [--exchanges 3] [--calls 5] [--differ]
//
// A call is the exchanges of one save: every rank sends 60 bytes and gets 100 back. By default all send the same, as in a
// save whose plans are as before; with --differ none do. A fan-out of 0 is a connection from every rank to rank 0. The
// table has the CPU of rank 0's thread and the time of a call, medians of all calls but the first, which connects.

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/seconds.h"
#include "base/time_source.h"
#include "coordinate/channel/channel.h"

namespace varve {
namespace {

constexpr double kLimit = 120;

struct Options {
  std::vector<int> ranks{256, 1024, 4096};
  std::vector<int> fan_outs{0, 32};
  int exchanges = 3;
  int calls = 5;
  bool differ = false;
};

class Memory final : public Rendezvous {
 public:
  Status Set(const std::string& key, const std::string& value) override {
    const std::scoped_lock lock(mutex_);
    values_[key] = value;
    return Status::Ok();
  }
  Result<std::optional<std::string>> Get(const std::string& key) override {
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    return found == values_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

double ThreadCpuMs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

Result<std::vector<std::string>> Replies(const std::vector<std::string>& given) {
  return std::vector<std::string>(given.size(), std::string(100, 'r'));
}

// Makes one call as one rank. Ends the program where it fails.
void Call(Channel& channel, const std::string& name, Rendezvous& rendezvous,
          const Options& options) {
  Status status = channel.Enter(name, kLimit, After(Now(), kLimit), rendezvous, "key");
  for (int i = 0; i < options.exchanges && status.ok(); ++i) {
    const auto ranks = MakeInStep({std::shared_ptr<void>(), &channel});
    std::string mine(60, 'm');
    if (options.differ) {
      mine.replace(0, 8, std::to_string(10'000'000 + channel.rank()));
    }
    status = Exchange(*ranks, name, mine, After(Now(), kLimit), &Replies).status();
  }
  if (!status.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", channel.rank(), status.message().c_str());
    std::_Exit(1);
  }
  channel.Leave("", -1);
  channel.Flush(After(Now(), kLimit));
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Measure(int size, int fan_out, const Options& options) {
  Memory rendezvous;
  std::vector<std::unique_ptr<Channel>> channels;
  for (int rank = 0; rank < size; ++rank) {
    channels.push_back(
        std::make_unique<Channel>(ChannelOptions{.rank = rank, .size = size, .fan_out = fan_out}));
  }
  std::barrier all(size);
  std::vector<double> cpu;
  std::vector<double> wall;
  const auto run = [&](int rank) {
    for (int call = 0; call < options.calls; ++call) {
      all.arrive_and_wait();
      const double cpu_before = ThreadCpuMs();
      const TimePoint before = Now();
      Call(*channels[static_cast<std::size_t>(rank)], "call " + std::to_string(call), rendezvous,
           options);
      if (rank == 0 && call > 0) {
        cpu.push_back(ThreadCpuMs() - cpu_before);
        wall.push_back(std::chrono::duration<double, std::milli>(Now() - before).count());
      }
    }
    all.arrive_and_wait();
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back(run, rank);
    }
  }
  std::printf("%7d %8d %12.2f %10.1f\n", size, fan_out, Median(cpu), Median(wall));
  std::fflush(stdout);
}

std::vector<int> Numbers(const std::string& text) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at <= text.size(); at = text.find(',', at) + 1) {
    numbers.push_back(std::atoi(text.c_str() + at));
    if (text.find(',', at) == std::string::npos) {
      break;
    }
  }
  return numbers;
}

int Main(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
    if (name == "--differ") {
      options.differ = true;
      continue;
    }
    ++i;
    if (name == "--ranks" && !value.empty()) {
      options.ranks = Numbers(value);
    } else if (name == "--fan-out" && !value.empty()) {
      options.fan_outs = Numbers(value);
    } else if (name == "--exchanges" && !value.empty()) {
      options.exchanges = std::atoi(value.c_str());
    } else if (name == "--calls" && !value.empty()) {
      options.calls = std::max(std::atoi(value.c_str()), 2);
    } else {
      std::fprintf(stderr, "unknown option or no value: %s\n", name.c_str());
      return 2;
    }
  }
  std::printf("%7s %8s %12s %10s\n", "ranks", "fan-out", "0: CPU ms", "call, ms");
  for (const int size : options.ranks) {
    for (const int fan_out : options.fan_outs) {
      Measure(size, fan_out, options);
    }
  }
  return 0;
}

}  // namespace
}  // namespace varve

int main(int argc, char** argv) {
  return varve::Main(std::vector<std::string>(argv + 1, argv + argc));
}
