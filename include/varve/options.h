/// Options and reports of save and load, one plain struct each.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "varve/events.h"
#include "varve/metadata.h"

namespace varve {

/// Called now and then from worker threads with bytes done and bytes in all; must be quick and
/// thread-safe.
using ProgressFunction = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// The bytes that ranks compare to find replicas that differ.
enum class CheckReplicas : std::uint8_t {
  /// All of a shard of up to 64 KiB; of a larger one 64 samples of 64 bytes, evenly spaced. Finds
  /// replicas that have diverged, not a single element that differs between two samples.
  /// A replica is stored by one rank, as a whole.
  kSamples,
  /// All bytes: one more pass over all shards that other ranks may hold too. Ranks share the writing
  /// of a large replica.
  kFull,
};

/// The effect of tensors and plain values of which ranks hold different ones under one name.
/// SaveReport names them.
enum class OnDifference : std::uint8_t {
  /// Save each different value once, with the ranks that hold it (Metadata::tensor_variants). In
  /// formats with one value for a name, kDcp, kSafetensors and kHfai, as kFirst.
  kKeep,
  kFirst,  ///< Save the value of the lowest rank that holds one.
  kError,  ///< Fail on all ranks before anything is written, if tensors differ. Else as kKeep.
};

/// The effect of loading what differed between the ranks that saved it (OnDifference::kKeep).
enum class OnDifferenceAtLoad : std::uint8_t {
  /// Ranks that are as many as those that saved get their own values, by their numbers. Other
  /// worlds get an error, unless LoadRequest::one_will_do has the name.
  kKeep,
  kFirst,  ///< All ranks get the lowest rank's value.
};

/// The effect of a checkpoint that has the save's name.
enum class Overwrite : std::uint8_t {
  kNever,   ///< Fails with AlreadyExists.
  kAlways,  ///< Replaces it. It stays loadable until the new one is durable.
  /// Replaces it if it is damaged or incomplete: rank 0 verifies all its bytes before the name is
  /// claimed. An intact one is AlreadyExists. Not for uncoordinated saves.
  kDamaged,
  /// As kAlways. Where a format's files have fixed names and a storage no renames (kHfai in an
  /// object store), kAlways keeps a checkpoint and fails: this removes it before the new one is
  /// written.
  kInPlace,
};

/// Returns "false", "true", "damaged" or "in_place", as in Python.
std::string_view OverwriteName(Overwrite overwrite);

struct SaveOptions {
  /// An overwrite replaces the checkpoint and nothing else that is in its directory.
  Overwrite overwrite = Overwrite::kNever;
  /// False: save without coordination. Every rank writes and publishes its own file; the directory
  /// is a checkpoint once the files of all ranks are there. Replicated tensors are then stored by
  /// every rank that holds them.
  bool coordinate = true;
  /// kVarve; kDcp, a checkpoint that stock PyTorch opens, with Varve's checksums in its index;
  /// kSafetensors, a folder as Hugging Face's tools write it, with whole tensors, into which every
  /// rank writes its parts (in an object store whole files, which may first be joined from what all
  /// ranks hold); or kHfai, a part of hfai.checkpoint for each rank, whose State is what
  /// `varve.hfai` makes of it. Values that only a pickle can hold are refused in all but the first;
  /// kSafetensors holds tensors alone, and of tied ones the one with the lowest name.
  Format format = Format::kVarve;
  /// Identifies the save. All ranks of an uncoordinated save must give the same, new for every
  /// attempt; otherwise random when not given.
  std::optional<SaveId> save_id;
  /// Time for which any rank waits for the others before it fails and names the missing ranks.
  /// Includes the writing of the slowest rank.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Bypass the page cache (O_DIRECT) where the file system can.
  bool direct = true;
  /// 8 MiB writes under way at once. Default measured: 4-8 saturate a disk.
  int writes_in_flight = 6;
  /// Bytes a second that this rank writes at most; 0 for as many as the storage takes. Leaves room
  /// for a data loader on the same disk.
  std::uint64_t max_write_bandwidth = 0;
  /// A coordinated save by several ranks compares the replicas of each shard.
  CheckReplicas check_replicas = CheckReplicas::kSamples;
  OnDifference on_difference = OnDifference::kKeep;
  /// Bytes per data checksum: a multiple of 4096, at most 8 MiB. Kilobytes serve tests.
  std::uint64_t block_bytes = std::uint64_t{1} << 20;
  /// Bytes of a file's tensors at most, or one tensor; kSafetensors only.
  std::uint64_t shard_size = 5'000'000'000;
  /// Where the caller uploads the checkpoint afterwards. The engine compares it between the ranks,
  /// and does no more with it.
  std::string upload_to{};
  ProgressFunction progress;
  std::stop_token stop;
};

/// The result of a save.
struct SaveReport {
  SaveId save_id;
  std::uint64_t bytes_written = 0;  ///< By this rank, header included.
  double seconds = 0;
  bool direct = false;  ///< False: the file system refused O_DIRECT, writes went through the cache.
  /// Plain values that differ between ranks under one name. SaveOptions::on_difference says which
  /// are stored. Filled on the coordinator.
  std::vector<std::string> differing_objects;
  /// Tensors of which some shard differs between the ranks that hold it, likewise.
  std::vector<std::string> differing_tensors;
  /// Paths of files that stay under hidden names: a user put them beside the old checkpoint while
  /// it was replaced, and the new one's directory has another file of that name. Filled on the
  /// coordinator.
  std::vector<std::string> conflicts{};
  /// The storage does not keep two saves apart that publish one name in the same moment: the later
  /// one wins without a message. Filled on the coordinator.
  bool weak_publish = false;
  std::uint64_t device_bytes = 0;    ///< Copied from CUDA devices by the engine.
  std::uint64_t pageable_bytes = 0;  ///< Of those, into memory that the driver had not registered.
  CopiedAhead copied_ahead{};        ///< The State's.
  /// "plan" (this rank's plan and fingerprints), "exchange" (the ranks settle it and claim the
  /// name), "stage" (the copy of a save in the background), "wait" (for its turn), "write", "sync",
  /// "join" (kSafetensors in an object store: reading what all ranks wrote, and writing files of
  /// it), and "commit" (from then on to the outcome: the wait for slower ranks is in it). In waves
  /// "stage" and "write" run at the same time.
  std::vector<Phase> phases{};
};

/// The demands of a load before it changes anything.
enum class Strict : std::uint8_t {
  kOff,     ///< None: loads all entries that fit; the report has the rest.
  kWanted,  ///< All entries that the ranks want are in the checkpoint and fit. The report has the
            ///< unexpected ones.
  kExact,   ///< The same, and the checkpoint has no others.
};

/// The sizes that a target may have.
enum class Fit : std::uint8_t {
  kExact,  ///< Those of the stored tensor.
  /// Any, with as many dimensions: fills the part that both have, indices [0, min) in each
  /// dimension, and leaves the rest of the target alone. The report names these tensors. For a
  /// vocabulary that has grown or shrunk.
  kOverlap,
};

struct LoadOptions {
  Strict strict = Strict::kWanted;
  Fit fit = Fit::kExact;
  /// Convert between float16, bfloat16, float32 and float64 where stored and wanted types differ,
  /// to the nearest value, ties to even.
  bool cast = false;
  OnDifferenceAtLoad on_difference = OnDifferenceAtLoad::kKeep;
  /// Ranks that need the same bytes of files read them once from storage. Ranks of one node have
  /// them through its page cache. Ranks of several nodes, and all whose files are on a server, read
  /// a part each and send it to the others over sockets, at most 32 nodes together. For that each
  /// takes up to 400 MiB of memory, 900 MiB on many nodes. A rank that finds storage several times
  /// faster, or reaches no other rank, reads for itself. So do those of several nodes where files
  /// on a disk have no checksums of blocks. Nodes are told apart by the system's boot id, or by the
  /// environment variable VARVE_NODE. False: each rank reads for itself, past the cache.
  bool share = true;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Reads at most this far apart become one.
  std::uint64_t max_gap_bytes = std::uint64_t{64} << 10;
  /// Threads that read; 0 means 8, or as many as cores, up to 16, for what is in the page cache.
  int io_threads = 0;
  ProgressFunction progress;
  std::stop_token stop;
};

/// A tensor of another size than the stored one, filled as far as both go.
struct ResizedTensor {
  std::string fqn;
  Dims stored;  ///< Shape in the checkpoint.
  Dims wanted;  ///< Shape of the target.
  friend auto operator<=>(const ResizedTensor&, const ResizedTensor&) = default;
};

/// The outcome of a load.
struct LoadReport {
  std::uint64_t loaded = 0;      ///< Tensors and plain values that this rank has loaded.
  std::uint64_t bytes_read = 0;  ///< Of tensors; whole checksum blocks.
  /// The bytes that this rank asked storage for, for itself and for other ranks. It leaves out what
  /// the page cache, an agent's memory or another rank had. Where ranks of a node share reads by
  /// the page cache, it is an estimate: each rank counts its part.
  std::uint64_t storage_bytes = 0;
  std::uint64_t device_bytes = 0;  ///< Copied to CUDA devices by the engine.
  CopiedAhead copied_ahead{};      ///< The LoadRequest's.
  double seconds = 0;
  std::vector<std::string> missing;      ///< Wanted by some rank, not in the checkpoint.
  std::vector<std::string> unexpected;   ///< In the checkpoint, wanted by no rank.
  std::vector<std::string> mismatched;   ///< Of another dtype, shape or kind, with the reason.
  std::vector<ResizedTensor> resized{};  ///< Of some rank, filled in part: Fit::kOverlap.
  /// Wanted by this rank, and different between the ranks that saved: it got its own values of
  /// `kept`, and the lowest rank's of `merged`.
  std::vector<std::string> kept{};
  std::vector<std::string> merged{};
  /// "open", "plan", "exchange" (the ranks agree; at the end they wait for the slowest), "read",
  /// "verify", "copy" and "device" (copies to devices). The last four are done by several threads:
  /// the seconds are the threads' mean. A thread verifies and copies bytes of the page cache as it
  /// reads them: all is "read".
  std::vector<Phase> phases{};
};

}  // namespace varve
