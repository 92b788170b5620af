/// How the reads of one rank go together with those of others, from its need to the end of a load.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "catalogue/files.h"
#include "pipeline/file_reader.h"
#include "share/peer_reads.h"
#include "varve/checkpoint.h"
#include "varve/status.h"

namespace varve {

/// Threads: its functions are called by one at a time; what Arrange has set up is used by those of
/// the read.
class SharedReads {
 public:
  /// `metadata` and `files` are those of one checkpoint, and outlive this object.
  SharedReads(const Metadata& metadata, CheckpointFiles& files)
      : metadata_(metadata), files_(files) {}

  /// As CheckpointReader's functions of these names; `directory` is that of the files.
  std::string NeedOf(std::span<const TargetTensor> targets, const std::string& directory,
                     bool serves);
  [[nodiscard]] Result<std::vector<std::string>> ShareNeeds(
      std::span<const std::string> needs) const;
  Status Begin(const std::string& sharing);
  void End();

  /// Returns those of the files that a read needs which this rank reads from storage itself: it
  /// opens them before it changes anything.
  [[nodiscard]] std::set<std::uint32_t> FilesToOpen(std::set<std::uint32_t> needed) const;

  /// Ends the waits of a read for other ranks when it is stopped.
  using GivesUp = std::stop_callback<std::function<void()>>;
  /// Has the reads of files go as the ranks have agreed. To be kept until they have been made.
  std::unique_ptr<GivesUp> Arrange(std::span<FileReads> reads, ReadFilesOptions* options);
  /// Returns how many bytes this rank has asked storage for where ranks read for each other, for
  /// the others too: it does not count the bytes of such reads elsewhere.
  [[nodiscard]] std::uint64_t storage_bytes() const;

 private:
  const Metadata& metadata_;
  CheckpointFiles& files_;
  SharedBy by_cache_;
  std::unique_ptr<PeerReads> peers_;  // Listens from NeedOf on.
  bool by_peers_ = false;
  std::uint64_t storage_bytes_ = 0;  // Of the groups that have ended.
};

}  // namespace varve
