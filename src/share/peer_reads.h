/// Ranks that read the same bytes of a checkpoint for each other. The account is in peer_reads.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/time_source.h"
#include "catalogue/files.h"
#include "coordinate/channel/connection.h"
#include "pipeline/file_reader.h"
#include "share/kept_cells.h"
#include "share/peer_link.h"
#include "share/sharing.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// One rank's part. From Join on it reads for the others of its group, on threads of its own, until
/// it is destroyed. Threads: Shared and its files may be used concurrently, the rest not.
class PeerReads {
 public:
  /// Opens the socket at which this rank will be asked. Errors: Unavailable.
  static Result<std::unique_ptr<PeerReads>> Listen();
  PeerReads(const PeerReads&) = delete;
  PeerReads& operator=(const PeerReads&) = delete;
  ~PeerReads();

  /// Returns the address for ReadNeed::address.
  [[nodiscard]] std::string address() const;
  /// Becomes one of the ranks in `group.nodes`. `files` and `metadata`
  /// outlive this object. Errors: DataLoss for what is no address; OutOfSpace, Unavailable.
  Status Join(const ReadGroup& group, const Metadata& metadata, CheckpointFiles& files);

  /// Returns a file as the group reads it; it lives as long as this object. `file` is the one of
  /// this number of the CheckpointFiles.
  ReadableFile* Shared(std::uint32_t number, ReadableFile& file);
  /// Returns false for a file of which this rank reads nothing from storage, unless another fails.
  [[nodiscard]] bool MayOwn(std::uint32_t number) const;
  /// Returns in which order this rank reads.
  [[nodiscard]] ReadOrder Order() const;
  /// Ends the waits for other ranks of reads under way, and of later ones.
  void GiveUp();
  /// Returns how many bytes this rank has asked storage for, for itself and for others.
  [[nodiscard]] std::uint64_t storage_bytes() const { return storage_bytes_; }

 private:
  class SharedFile;
  /// Another rank of the group.
  struct Peer {
    std::optional<Address> address;  // None of a rank that this one never asks.
    std::mutex mutex;                // Guards what follows.
    std::vector<PeerLink> idle;
    TimePoint lost_until = TimePoint::min();
  };
  /// A connection that is served on a thread.
  struct Served {
    std::thread thread;
    std::atomic<bool> ended{false};
  };
  /// Who reads a cell: kOwner from storage, kOfNode from the owner, for the ranks of its node.
  enum class Role : std::uint8_t { kOwner, kOfNode, kOther };
  struct Source {
    Role role = Role::kOther;
    std::size_t ask = 0;  ///< The peer that is asked, where it is not this rank itself.
  };
  struct Speed {
    std::atomic<std::uint64_t> reads{0};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::int64_t> nanoseconds{0};
    void Add(std::uint64_t size, TimePoint begin);
  };

  PeerReads(Socket listener, Address address);

  [[nodiscard]] bool ByFile() const;
  [[nodiscard]] std::size_t WindowCells() const;
  [[nodiscard]] Source SourceOf(std::uint32_t file, std::uint64_t cell) const;

  Status Read(std::uint32_t number, ReadableFile& file, std::uint64_t offset,
              std::span<const std::span<std::byte>> parts);
  Result<std::shared_ptr<Cell>> Filled(std::uint32_t number, ReadableFile& file, ByteRange range);
  bool Fetch(std::size_t peer, std::uint32_t number, ByteRange range, std::chrono::seconds limit,
             std::span<const std::span<std::byte>> parts);
  Result<PeerLink> LinkTo(Peer& peer);
  [[nodiscard]] bool HasNoSums(std::uint32_t number) const {
    return metadata_->files[number].block_crc32c.empty();
  }
  void Compare();

  void Accept();
  void ReapServed();
  Status Serve(Socket socket);
  Result<std::shared_ptr<Cell>> ForOther(const PeerRequest& request);

  Socket listener_;
  const Address address_;
  Socket ends_;      // Readable once this object is being destroyed.
  Socket gives_up_;  // Readable once reads of this rank are given up.
  const Metadata* metadata_ = nullptr;
  CheckpointFiles* files_ = nullptr;
  bool remote_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;     // Of the whole group, by node.
  std::vector<std::vector<std::size_t>> nodes_;  // Places in `peers_`.
  std::size_t node_ = 0;                         // This rank's.
  std::size_t self_ = 0;                         // This rank, in `peers_`.
  std::optional<KeptCells> own_cells_;
  std::optional<KeptCells> node_cells_;  // That this rank has from their owners, for its node.
  std::mutex mutex_;                     // Guards `shared_files_`.
  std::map<std::uint32_t, std::unique_ptr<SharedFile>> shared_files_;
  Speed storage_;
  Speed others_;
  std::atomic<bool> alone_{false};  // The storage is faster, or the other ranks are out of reach.
  std::atomic<int> reached_{0};     // How many connections were made,
  std::atomic<int> refused_{0};     // and of how many ranks the first could not be.
  std::atomic<std::uint64_t> storage_bytes_{0};
  std::thread accepts_;
  std::list<Served> serves_;  // Of `accepts_`; after it has ended, of the destructor.
};

}  // namespace varve
