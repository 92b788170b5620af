/// Helpers that the layouts of OLMo share. Private to olmo*.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "catalogue/formats/opening.h"
#include "interop/olmo/names.h"
#include "interop/olmo/pieces.h"
#include "interop/state_tree.h"
#include "varve/status.h"

namespace varve {

/// The files that OLMo and OLMo-core write last.
inline constexpr std::string_view kOlmoMarks[] = {kOlmoMark, kOlmoCoreMark};

/// OLMo's trainer writes its checkpoints in directories of these names.
inline constexpr std::string_view kOlmoUnfinished[] = {"step#-tmp", "step#-unsharded-tmp"};

/// Returns true where a mark shows that the checkpoint was finished: one of these, or that of an
/// upload.
bool HasOlmoMark(const ListedFolder& folder);

/// Errors: FailedPrecondition where there is no mark.
Status CheckOlmoMarker(const ListedFolder& folder);

/// The files of a checkpoint whose index is being read: they get their numbers in the order in
/// which they are added.
class OlmoFiles {
 public:
  explicit OlmoFiles(const ListedFolder& folder) : folder_(folder) {}

  /// Adds files and returns the number of the first.
  std::uint32_t Add(const std::vector<std::string>& names);

  /// Calls `read(i, file)` for files `first` to `first + count`, on a few threads; `i` counts from
  /// 0. Notes their sizes. Errors: those of ForEachFile, annotated with the file's path.
  Status ForEach(std::uint32_t first, std::size_t count,
                 const std::function<Status(std::size_t, const NamedFile&)>& read);

  [[nodiscard]] const FileNames& names() const { return names_; }
  [[nodiscard]] ExtentReader Reader() const;

  /// Moves the files into `*metadata`, behind those that are there.
  void Take(Metadata* metadata);

 private:
  const ListedFolder& folder_;
  FileNames names_;
  std::vector<std::uint64_t> sizes_;
};

/// The names of the files of ranks: PREFIX{R}SUFFIX.
struct RankPattern {
  std::string_view prefix = "rank";
  std::string_view suffix = ".pt";
};

/// Returns the name of a rank's file in the folder `below`, which may be empty.
std::string RankFileName(const std::string& below, std::size_t rank, const RankPattern& pattern);

/// The files of ranks.
struct RankFiles {
  std::vector<std::string> names;
  std::vector<std::uint32_t> ranks;  ///< Of each file: 0, 1, ... unless a node's own suffice.
};

/// Finds the files in the folder `below`, which may be empty, from rank 0 to the last. Errors:
/// DataLoss when one is missing below the greatest number; with `world_size`, when there are not
/// exactly so many. Where own ranks suffice it finds those that are there. Errors: DataLoss for
/// none, and for a rank outside the world.
Result<RankFiles> FindRankFiles(const ListedFolder& folder, const std::string& below,
                                std::uint32_t world_size, const RankPattern& pattern = {});

/// Reads the trainer's states from `train/rank{R}.pt` and adds them to `*root`: `train` is rank
/// 0's, `train/rank{R}` each rank's. Adds nothing where there is no such folder. `world_size` as
/// FindRankFiles.
Status AddTrainStates(const ListedFolder& folder, std::uint32_t world_size, OlmoFiles* files,
                      StateNode* root, std::vector<RecordCrc>* records);

/// The FQN of what rank `rank` stores of its own: the name that varve.torch.PerRank gives it.
std::string TrainOfRank(std::size_t rank);

/// Flattens the state and makes the index. Errors: as FlattenState and CheckExtents.
Result<OpenedIndex> OpenedOlmo(const ListedFolder& folder, Format format, std::uint32_t world_size,
                               StateNode root, Decoded decoded, OlmoFiles* files);

}  // namespace varve
