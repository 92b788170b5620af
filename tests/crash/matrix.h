/// A crash at every operation, a power cut of every kind, and checks of what is left.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/states.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"

namespace varve::test {

/// The storage after a crash, and the crash that caused it.
struct Survivor {
  std::unique_ptr<MemoryStorage> storage;
  std::string how;
};

/// Returns what each kind of power cut leaves. `first` is the first seed of those that are random:
/// another one for each crash, for a seed always keeps the same of the first changes.
inline std::vector<Survivor> Survivors(const MemoryStorage& memory, std::uint64_t seeds,
                                       std::uint64_t first = 0) {
  std::vector<Survivor> survivors;
  survivors.push_back({memory.AfterKill(), "killed"});
  survivors.push_back({memory.AfterPowerCut(PowerCut::kKeepAll), "all kept"});
  survivors.push_back({memory.AfterPowerCut(PowerCut::kKeepSynced), "only what was synced"});
  survivors.push_back({memory.AfterPowerCut(PowerCut::kZeroData), "unsynced data is zeros"});
  survivors.push_back({memory.AfterPowerCut(PowerCut::kTruncateData), "unsynced data is cut"});
  survivors.push_back({memory.AfterPowerCut(PowerCut::kKeepData), "unsynced names are lost"});
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    survivors.push_back({memory.AfterPowerCut(PowerCut::kRandomOrdered, seed),
                         "ordered, seed " + std::to_string(seed)});
    survivors.push_back(
        {memory.AfterPowerCut(PowerCut::kRandom, seed), "random, seed " + std::to_string(seed)});
  }
  return survivors;
}

using Action = std::function<Status(Storage&)>;

/// Runs `action` on copies of `base`, stopping after 0, 1, 2, ... changes (those of kEvery),
/// and once to its end. Calls `visit` with what each run left and its outcome. Returns the number
/// of crash points.
inline std::uint64_t ForEachCrash(
    const MemoryStorage& base, const Action& action,
    const std::function<void(MemoryStorage& left, const Status& outcome)>& visit,
    std::uint64_t step = kEvery) {
  for (std::uint64_t k = 0;; k += step) {
    const auto memory = base.AfterKill();
    FaultyStorage faulty(*memory);
    faulty.StopAt(k);
    const Status outcome = action(faulty);
    const testing::ScopedTrace trace(
        "", 0, "stopped after " + std::to_string(k) + " changes, which gave " + outcome.ToString());
    const bool stopped = faulty.stopped();
    EXPECT_TRUE(stopped || outcome.ok());
    visit(*memory, outcome);
    if (!stopped || testing::Test::HasFailure()) {
      return k;
    }
  }
}

/// Checks that the storage holds one of `allowed` and nothing else, or, when `may_be_absent`, no
/// checkpoint yet.
inline testing::AssertionResult HoldsOneOf(const std::string& path, Storage& storage,
                                           const std::vector<const Content*>& allowed,
                                           bool may_be_absent = false) {
  const auto content = ReadContent(path, storage);
  if (!content.ok()) {
    const StatusCode code = content.status().code();
    if (may_be_absent &&
        (code == StatusCode::kNotFound || code == StatusCode::kFailedPrecondition)) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << path << ": " << content.status().ToString();
  }
  for (const Content* candidate : allowed) {
    if (*content == *candidate) {
      return testing::AssertionSuccess();
    }
  }
  return testing::AssertionFailure()
         << path << " holds none of the " << allowed.size() << " allowed states, or a mix";
}

/// Lists every name below `directory`.
inline void ListTree(Storage& storage, const std::string& directory,
                     std::vector<std::string>* names) {
  const auto entries = storage.List(directory);
  if (!entries.ok()) {
    return;
  }
  for (const DirectoryEntry& entry : *entries) {
    const std::string name = JoinPath(directory, entry.name);
    names->push_back(name);
    if (entry.is_directory) {
      ListTree(storage, name, names);
    }
  }
}

/// Checks that the directory of `path` holds `paths`, their files and `others`, and no other name.
inline testing::AssertionResult HoldsNothingBut(const std::vector<std::string>& paths,
                                                Storage& storage,
                                                const std::vector<std::string>& others = {}) {
  std::vector<std::string> expected = others;
  for (const std::string& path : paths) {
    const auto reader = CheckpointReader::Open(path, storage);
    if (!reader.ok()) {
      return testing::AssertionFailure() << path << ": " << reader.status().ToString();
    }
    expected.push_back(path);
    for (const DataFile& file : (*reader)->metadata().files) {
      expected.push_back(JoinPath(path, file.name));
    }
    for (const auto& index :
         {std::array{"varve.json", "manifest.bin"},
          std::array{"model.safetensors.index.json", "model.varve-checksums.json"}}) {
      if (storage.OpenForRead(JoinPath(path, index[0])).ok()) {
        expected.push_back(JoinPath(path, index[0]));
        expected.push_back(JoinPath(path, index[1]));
      }
    }
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> found;
  ListTree(storage, ParentPath(paths.front()), &found);
  std::sort(found.begin(), found.end());
  if (found == expected) {
    return testing::AssertionSuccess();
  }
  auto failure = testing::AssertionFailure() << "found";
  for (const std::string& name : found) {
    failure << " " << name
            << (std::binary_search(expected.begin(), expected.end(), name) ? "" : " (!)");
  }
  return failure;
}

}  // namespace varve::test
