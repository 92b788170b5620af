// Measures what exchanges between many ranks cost rank 0, with all ranks as threads of this process
// and real sockets.
//
//   channels [--ranks 256,1024,4096] [--fan-out 0,32] [--calls 5] [--differ]
//
// A call is three exchanges, as in one save: every rank sends 60 bytes and gets 100 back. By
// default all send the same, as in a save whose plans are as before; with --differ none do. A
// fan-out of 0 is a connection from every rank to rank 0. The table has the CPU of rank 0's thread
// and the time of a call, medians of all calls but the first.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "varve/coordinator.h"

namespace {

using std::chrono::steady_clock;

constexpr auto kLimit = std::chrono::minutes(2);
constexpr int kExchanges = 3;

struct Options {
  std::vector<int> ranks{256, 1024, 4096};
  std::vector<int> fan_outs{0, 32};
  int calls = 5;
  bool differ = false;
};

struct Times {
  std::vector<double> cpu_ms;
  std::vector<double> wall_ms;
};

[[noreturn]] void Stop(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);
}

double ThreadCpuMs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

varve::Result<std::vector<std::string>> Replies(const std::vector<std::string>& given) {
  return std::vector<std::string>(given.size(), std::string(100, 'r'));
}

/// Makes the exchanges of one call as one rank. Ends the program where one fails.
void Call(varve::Coordinator& ranks, bool differ) {
  std::string mine(60, 'm');
  if (differ) {
    mine.replace(0, 8, std::to_string(10'000'000 + ranks.rank()));
  }
  for (int i = 0; i < kExchanges; ++i) {
    const auto reply = varve::Exchange(ranks, "call", mine, steady_clock::now() + kLimit, &Replies);
    if (!reply.ok()) {
      Stop("rank " + std::to_string(ranks.rank()) + ": " + reply.status().message());
    }
  }
}

/// Makes all calls as one rank; returns the times of all but the first.
Times Run(int rank, int size, const std::string& directory, const Options& options) {
  const auto rendezvous = varve::MakeDirectoryRendezvous(directory);
  auto ranks = varve::MakeSocketCoordinator(*rendezvous, {.rank = rank, .size = size});
  if (!ranks.ok()) {
    Stop("rank " + std::to_string(rank) + ": " + ranks.status().message());
  }
  Times times;
  for (int call = 0; call < options.calls; ++call) {
    const double cpu_before = ThreadCpuMs();
    const auto before = steady_clock::now();
    Call(**ranks, options.differ);
    if (call > 0) {
      const std::chrono::duration<double, std::milli> passed = steady_clock::now() - before;
      times.cpu_ms.push_back(ThreadCpuMs() - cpu_before);
      times.wall_ms.push_back(passed.count());
    }
  }
  return times;
}

double Median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void Measure(int size, int fan_out, const Options& options) {
  ::setenv("VARVE_FAN_OUT", std::to_string(fan_out).c_str(), 1);
  const auto directory =
      std::filesystem::temp_directory_path() / ("varve-channels-" + std::to_string(::getpid()));
  std::filesystem::create_directory(directory);
  {
    std::vector<std::jthread> others;
    others.reserve(static_cast<std::size_t>(size));
    for (int rank = 1; rank < size; ++rank) {
      others.emplace_back([&, rank] { (void)Run(rank, size, directory, options); });
    }
    const Times times = Run(0, size, directory, options);
    std::printf("%7d %8d %12.2f %10.1f\n", size, fan_out, Median(times.cpu_ms),
                Median(times.wall_ms));
    std::fflush(stdout);
  }
  std::filesystem::remove_all(directory);
}

/// Returns the numbers of a list such as "8,64".
std::vector<int> Numbers(const std::string& text) {
  std::vector<int> numbers;
  for (std::size_t at = 0; at < text.size();) {
    numbers.push_back(std::atoi(text.c_str() + at));
    const std::size_t comma = text.find(',', at);
    at = comma == std::string::npos ? text.size() : comma + 1;
  }
  return numbers;
}

Options OptionsFrom(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--differ") {
      options.differ = true;
    } else if (++i == arguments.size()) {
      Stop(name + " is no option, or has no value");
    } else if (name == "--ranks") {
      options.ranks = Numbers(arguments[i]);
    } else if (name == "--fan-out") {
      options.fan_outs = Numbers(arguments[i]);
    } else if (name == "--calls") {
      options.calls = std::max(std::atoi(arguments[i].c_str()), 2);
    } else {
      Stop(name + " is no option");
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = OptionsFrom(std::vector<std::string>(argv + 1, argv + argc));
  std::printf("%7s %8s %12s %10s\n", "ranks", "fan-out", "0: CPU ms", "call, ms");
  for (const int size : options.ranks) {
    for (const int fan_out : options.fan_outs) {
      Measure(size, fan_out, options);
    }
  }
  return 0;
}
