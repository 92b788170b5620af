// varve_sim: runs the simulator.
//
//   varve_sim SEEDS [--first N] [--plant NAME] [--jobs N]   the seeds from N on; ends at a failure
//   varve_sim --seed N [--plant NAME]                       one seed, with its trace
//   varve_sim --plants                                      the bugs that can be planted
//   varve_sim SEEDS --find-plants                           each plant is found within the seeds

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sim/background.h"
#include "sim/devices.h"
#include "sim/scenario.h"
#include "sim/uploads.h"

namespace varve::sim {
namespace {

struct Options {
  std::uint64_t seeds = 0;
  std::uint64_t first = 0;
  std::optional<std::uint64_t> seed;
  Plant plant = Plant::kNone;
  bool list_plants = false;
  bool find_plants = false;
  unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
};

struct Found {
  std::uint64_t seed = 0;
  std::string problem;
};

/// One seed of eight is of copies between devices and the host, one of eight of uploads to an
/// object store, one of six of saves in the background, the others of saves by their own processes.
Outcome RunSeed(std::uint64_t seed, Plant plant, bool keep_trace) {
  if (seed % 8 == 7) {
    return RunDevices(seed, plant, keep_trace);
  }
  if (seed % 6 == 5) {
    return RunUploads(seed, plant, keep_trace);
  }
  return seed % 3 == 2 ? RunBackground(seed, plant, keep_trace)
                       : RunScenario(seed, plant, keep_trace);
}

/// Runs seeds from `first` on, until all have run or one has failed. Returns the lowest that
/// failed.
std::optional<Found> RunSeeds(const Options& options, Plant plant, std::uint64_t* steps) {
  std::atomic<std::uint64_t> next = options.first;
  std::atomic<std::uint64_t> all_steps = 0;
  std::atomic<std::uint64_t> stop_at = options.first + options.seeds;
  std::mutex mutex;
  std::optional<Found> found;
  const auto work = [&] {
    for (std::uint64_t seed = next++; seed < stop_at; seed = next++) {
      const Outcome outcome = RunSeed(seed, plant, false);
      all_steps += outcome.steps;
      if (!outcome.problem.empty()) {
        const std::scoped_lock lock(mutex);
        if (!found || seed < found->seed) {
          found = {seed, outcome.problem};
          stop_at = seed;
        }
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < options.jobs; ++i) {
      threads.emplace_back(work);
    }
  }
  *steps = all_steps;
  return found;
}

int RunOne(const Options& options) {
  const Outcome outcome = RunSeed(*options.seed, options.plant, true);
  for (const std::string& line : outcome.trace) {
    std::printf("%s\n", line.c_str());
  }
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(*options.seed),
              outcome.problem.empty() ? "all of it held" : outcome.problem.c_str());
  return outcome.problem.empty() ? 0 : 1;
}

int RunMany(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t steps = 0;
  const auto found = RunSeeds(options, options.plant, &steps);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double count = static_cast<double>(found ? found->seed - options.first + 1 : options.seeds);
  std::printf("sim: %.0f seeds in %.1f s, %.0f a second, %.0f steps each\n", count, seconds,
              count / seconds, static_cast<double>(steps) / count);
  if (found) {
    std::printf("sim: seed %llu: %s\n", static_cast<unsigned long long>(found->seed),
                found->problem.c_str());
  }
  return found ? 1 : 0;
}

int FindPlants(const Options& options) {
  int missed = 0;
  for (const PlantName& plant : Plants()) {
    std::uint64_t steps = 0;
    const auto found = RunSeeds(options, plant.plant, &steps);
    missed += found ? 0 : 1;
    std::printf("%-24s %s", std::string(plant.name).c_str(),
                found
                    ? ("seed " + std::to_string(found->seed) + ": " + found->problem + "\n").c_str()
                    : "NOT FOUND\n");
  }
  return missed == 0 ? 0 : 1;
}

std::optional<std::uint64_t> Number(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number)
                                                                  : std::nullopt;
}

std::optional<Options> Parse(const std::vector<std::string_view>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--plants") {
      options.list_plants = true;
      continue;
    }
    if (argument == "--find-plants") {
      options.find_plants = true;
      continue;
    }
    const bool takes_value = argument.starts_with("--");
    if (takes_value && ++i == arguments.size()) {
      return std::nullopt;
    }
    if (argument == "--plant") {
      const auto plant = PlantNamed(arguments[i]);
      if (!plant) {
        return std::nullopt;
      }
      options.plant = *plant;
      continue;
    }
    const auto number = Number(arguments[i]);
    if (!number) {
      return std::nullopt;
    }
    if (argument == "--seed") {
      options.seed = *number;
    } else if (argument == "--first") {
      options.first = *number;
    } else if (argument == "--jobs") {
      options.jobs = static_cast<unsigned>(std::clamp<std::uint64_t>(*number, 1, 1024));
    } else if (!takes_value) {
      options.seeds = *number;
    } else {
      return std::nullopt;
    }
  }
  return options;
}

int Main(const std::vector<std::string_view>& arguments) {
  const auto options = Parse(arguments);
  if (!options || (options->seeds == 0 && !options->seed && !options->list_plants)) {
    std::fprintf(stderr,
                 "usage: varve_sim SEEDS [--first N] [--plant NAME | --find-plants] [--jobs N]\n"
                 "       varve_sim --seed N [--plant NAME]\n"
                 "       varve_sim --plants\n");
    return 2;
  }
  if (options->list_plants) {
    for (const PlantName& plant : Plants()) {
      std::printf("%-24s %s\n", std::string(plant.name).c_str(), std::string(plant.what).c_str());
    }
    return 0;
  }
  if (options->seed) {
    return RunOne(*options);
  }
  return options->find_plants ? FindPlants(*options) : RunMany(*options);
}

}  // namespace
}  // namespace varve::sim

int main(int argc, char** argv) {
  const int code = varve::sim::Main({argv + 1, argv + argc});
  std::fflush(stdout);
  std::_Exit(code);  // Threads of a run that went wrong may stand somewhere.
}
