/// Claims that every backend must meet, for its author's tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "varve/protocol/storage_layer.h"

namespace varve::protocol {

/// The backend to be tried. The functions are called on the threads of several ranks, but one at a
/// time; the objects they make are used at the same time. All that they make share one storage.
struct ConformanceSubject {
  std::function<std::unique_ptr<StorageWriter>()> make_writer;
  std::function<std::unique_ptr<StorageReader>()> make_reader;
  /// A checkpoint id under which nothing is stored, another one for each call.
  std::function<std::string()> new_checkpoint_id;
  /// May be empty. Makes the storage's next operations fail until it is called with false: a full
  /// disk, a store that is out of reach.
  std::function<void(bool broken)> break_storage{};
};

/// One claim, and whether the backend meets it.
struct ConformanceClaim {
  std::string name;  ///< "ShardsOfSeveralRanksComeBack".
  bool passed = false;
  std::string message;  ///< The expectation and the outcome; empty when passed.
};

/// Saves and loads small states on up to three ranks (threads of this process) and tries every
/// claim, also after one has failed. Takes a second or so where the storage is fast. A backend that
/// crashes or hangs is not contained.
std::vector<ConformanceClaim> RunStorageConformance(const ConformanceSubject& subject);

/// Returns one line for each claim that is not met; empty when all are.
std::string DescribeFailures(const std::vector<ConformanceClaim>& claims);

}  // namespace varve::protocol
