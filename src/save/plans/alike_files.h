/// Data files whose tensors lie as in the file of an earlier rank: the same tensors at the same bytes,
/// of boxes that have the same sizes. Where a model is sharded over all ranks, the files of all but
/// the first few ranks are so. To place the tensors of such a file again would tell nothing that is
/// not known.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "plan/file_plan.h"
#include "plan/save_plan.h"
#include "plan/spec_table.h"
#include "save/settled.h"

namespace varve {

/// Not thread-safe.
class AlikeFiles {
 public:
  struct File {
    DataFileHeader header;   ///< Laid out, without chunks; checksums still zero.
    std::vector<Box> boxes;  ///< By family of the rank's plan.
  };

  /// `settled`, of a coordinator, must outlive this.
  explicit AlikeFiles(const SettledSave& settled) : settled_(settled) {}

  /// Compares the ranks from now on with this one, which writes `assignment` as `file`.
  void Follow(std::uint32_t rank, const RankAssignment& assignment, const FilePlan& file);

  /// Returns the file of the rank of `identity` where its tensors lie as those of the rank that is
  /// followed; nothing where they may lie otherwise. Errors: PlanFile's.
  [[nodiscard]] Result<std::optional<File>> FileOf(const FileIdentity& identity) const;
  /// By chunk of the file that is followed: its family.
  [[nodiscard]] const std::vector<std::uint32_t>& family_of_chunk() const { return of_chunk_; }
  /// The plain values that the followed rank writes, and so does one whose file is like its.
  [[nodiscard]] const std::vector<std::uint32_t>& objects() const { return values_.objects; }

 private:
  const SettledSave& settled_;
  std::uint32_t rank_ = 0;            ///< The one that is followed; 0: none is.
  const SpecTable* table_ = nullptr;  ///< The same families are others of another table.
  std::string_view encoded_families_;
  Families families_;
  std::vector<Box> boxes_;  ///< By family.
  std::vector<std::uint32_t> of_chunk_;
  std::uint64_t chunk_bytes_ = 0;  ///< Of all chunks; values lie behind them.
  RankAssignment values_;          ///< Of the assignment, without its chunks.
};

}  // namespace varve
