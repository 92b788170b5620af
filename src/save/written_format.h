/// The formats that a coordinated save writes, one entry each. Exchanges, claims and the commit are
/// the same for all of them (coordinated.cc).
#pragma once

#include <string>
#include <vector>

#include "publish/commit.h"
#include "save/file_work.h"
#include "save/settled.h"
#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

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
};

struct WrittenFormat {
  Format format = Format::kVarve;
  /// True where a rank may save in it without coordination.
  bool rank_local = false;
  /// Checks on the coordinator, before any data are written, that the index can be. Reads the plans
  /// of all ranks. Errors: InvalidArgument.
  Status (*check)(const SettledSave& settled) = nullptr;
  /// Lays out this rank's file. `state` must stay where it is until the data have been written or
  /// staged. A null `state` gives a file without segments, for a process that has a copy of the
  /// data and SettledSave::layout. Errors: InvalidArgument, Unimplemented, naming the tensor or
  /// value.
  Result<RankFile> (*lay_out)(const State* state, const SettledSave& settled) = nullptr;
  /// Makes the index on the coordinator, from the receipts of all ranks (FileWork::finish).
  Result<CheckpointIndex> (*make_index)(const SettledSave& settled,
                                        const std::vector<std::string>& receipts) = nullptr;
};

/// Returns null for a format that no save writes.
const WrittenFormat* FindWrittenFormat(Format format);

/// The entries.
extern const WrittenFormat kNativeFormat;  // native.cc
extern const WrittenFormat kDcpFormat;     // dcp.cc
extern const WrittenFormat kHfaiFormat;    // hfai.cc

}  // namespace varve
