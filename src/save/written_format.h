/// The formats that a coordinated save writes, one entry each. Exchanges, claims and the commit are
/// the same for all of them (coordinated.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "publish/commit.h"
#include "save/file_work.h"
#include "save/settled.h"
#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// Parts of a file whose other parts are written, or not there yet. What lies together begins and
/// ends with a page or with the file.
struct FilePatch {
  std::string name;
  std::uint64_t size = 0;  ///< Of the whole file.
  /// By offset, disjoint. Views of CheckpointIndex::keep and of the receipts.
  std::vector<std::pair<std::uint64_t, std::string_view>> parts;
};

/// A rank's data file before it is written.
struct RankFile {
  std::string name;
  FileWork work;
};

/// The files that the coordinator publishes: the data files it counts on, and the index in the
/// order in which it is written.
struct CheckpointIndex {
  std::vector<DataFile> files;
  std::vector<IndexFile> index;
  /// What the coordinator writes into data files of several ranks before it publishes them.
  std::vector<FilePatch> patches{};
  /// Names in the staging directory that are removed before the checkpoint is published.
  std::vector<std::string> used_up{};
  std::shared_ptr<const void> keep{};
};

/// How files are made of what all ranks have written, where a file has the tensors of several ranks
/// and the storage takes it from one writer.
struct JoinedFiles {
  /// Returns true where this save does it; on the coordinator, after WrittenFormat::place.
  bool (*is_needed)(const SettledSave& settled) = nullptr;
  /// On the coordinator, when all ranks have written: makes that readable for all, in `staging`.
  Status (*gather)(const SettledSave& settled, const std::vector<std::string>& receipts,
                   const std::string& staging, Storage& storage) = nullptr;
  /// On every rank: writes its share of the files into `staging`. The receipt is make_index's.
  Result<WrittenShare> (*join)(const SettledSave& settled, const std::string& staging,
                               Storage& storage, const SaveOptions& options) = nullptr;
};

struct WrittenFormat {
  Format format = Format::kVarve;
  /// True where a rank may save in it without coordination.
  bool rank_local = false;
  /// True where it can hold several values of one name (format/variants.h).
  bool holds_variants = false;
  /// True where `check` takes folded plans (plan/fold.h) too, and there is no `place`.
  bool takes_folded = false;
  /// Checks on each rank what is known before the plans of `writers` ranks are exchanged; null
  /// where there is nothing. Errors: InvalidArgument.
  Status (*check_own)(const LocalPlan& plan, int writers) = nullptr;
  /// Checks on the coordinator, before any data are written, that the index can be. Reads the plans
  /// of all ranks, and whether there are side files: where these are as in an earlier save, it is
  /// not called. Errors: InvalidArgument.
  Status (*check)(const SettledSave& settled) = nullptr;
  /// Makes SettledSave::placement of each rank, on the coordinator; null where the assignment says
  /// all. May give a chunk to another rank that holds it. Errors: InvalidArgument.
  Result<std::vector<Bytes>> (*place)(SettledSave* settled) = nullptr;
  /// Lays out this rank's file. `state` must stay where it is until the data have been written or
  /// staged. A null `state` gives a file without segments, for a process that has a copy of the
  /// data and SettledSave::layout. Errors: InvalidArgument, Unimplemented, naming the tensor or
  /// value.
  Result<RankFile> (*lay_out)(const State* state, const SettledSave& settled) = nullptr;
  /// Returns those names of files that the save will write which a user's files in the checkpoint's
  /// directory may have too, on the coordinator; null where there are none.
  std::vector<std::string> (*names)(const SettledSave& settled) = nullptr;
  /// The name of its index, where that says of each data file where it is; empty where there is
  /// none, and data files have names that are fixed. Then `names` gives all of them.
  std::string_view index_name{};
  /// Makes the index on the coordinator, from the receipts of all ranks (FileWork::finish), which
  /// outlive it. `below` stands before the names of files in a fixed index, see Commit::below; the
  /// files that are returned are without.
  Result<CheckpointIndex> (*make_index)(const SettledSave& settled,
                                        const std::vector<std::string>& receipts,
                                        const std::string& below) = nullptr;
  /// Null where every file has the tensors of one rank.
  const JoinedFiles* joined = nullptr;

  /// Returns true where no index says of a data file where it is: its name does.
  [[nodiscard]] bool HasFixedNames() const {
    return format != Format::kVarve && index_name.empty();
  }
};

/// Writes the patches in `directory` and makes them durable. Errors: as WritableFile.
Status WritePatches(Storage& storage, const std::string& directory,
                    const std::vector<FilePatch>& patches);

/// Returns null for a format that no save writes.
const WrittenFormat* FindWrittenFormat(Format format);

/// Checks that a state holds nothing that the format has no place for: tensors that are made of
/// others, as pickles (SourceObject::storages), are for DCP's with a structure alone, which tells
/// that they are none of the checkpoint's own values.
Status CheckPickles(const State& state, Format format);

/// The entries.
extern const WrittenFormat kNativeFormat;  // native.cc
extern const WrittenFormat kDcpFormat;     // dcp.cc
extern const WrittenFormat kHfaiFormat;    // hfai.cc
extern const WrittenFormat kHfFormat;      // hf/hf.cc

}  // namespace varve
