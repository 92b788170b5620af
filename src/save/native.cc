// The native format: a self-describing safetensors file for each rank; manifest.bin and varve.json
// as the index, a merge of the files' headers.

#include "save/native.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/guarded.h"
#include "catalogue/side_files.h"
#include "format/manifest.h"
#include "plan/index_size.h"
#include "save/data_writer.h"
#include "save/plans/alike_files.h"
#include "save/plans/kept_index.h"

namespace varve {

Status CheckNative(const SettledSave& settled, const FileIdentity& identity) {
  return CheckManifestSize(
      CountIndex(settled.plans, settled.settled, identity.block_bytes, settled.hidden));
}

Result<RankFile> LayOutNative(const State* state, const SettledSave& settled,
                              const FileIdentity& identity) {
  VARVE_ASSIGN_OR_RETURN(const FilePlan plan,
                         PlanFile(settled.plan(), settled.assignment(), identity));
  RankFile file;
  file.name = DataFileName(plan.header);
  auto work = state == nullptr ? DescribeDataFile(plan)
                               : PrepareDataFile(*state, plan, settled.assignment().structure);
  if (!work.ok()) {
    return work.status().Annotate("the data file of rank " + std::to_string(identity.rank));
  }
  file.work = std::move(work).value();
  return file;
}

namespace {

/// Adds a rank's file without placing its tensors, where they lie as in the one before. Returns
/// whether they do.
Result<bool> AddAlike(const FileIdentity& identity, const WriteReceipt& receipt,
                      const AlikeFiles& alike, HeaderMerge* merge) {
  VARVE_ASSIGN_OR_RETURN(auto file, alike.FileOf(identity));
  if (!file) {
    return false;
  }
  VARVE_RETURN_IF_ERROR(ApplyReceipt(receipt, &file->header));
  return merge->AddAlike({std::move(file->header), receipt.header_bytes, receipt.header_crc32c},
                         file->boxes, alike.family_of_chunk());
}

}  // namespace

Result<CheckpointIndex> MakeNativeIndex(const SettledSave& settled,
                                        const std::vector<std::string>& receipts,
                                        FileIdentity identity) {
  const auto finish = [&](Metadata metadata) -> Result<CheckpointIndex> {
    metadata.side_files = DescribeSideFiles(settled.side_files);
    CheckpointIndex made;
    VARVE_ASSIGN_OR_RETURN(made.index, NativeIndex(metadata));
    made.files = std::move(metadata.files);
    return made;
  };
  if (settled.kept_index != nullptr) {
    VARVE_ASSIGN_OR_RETURN(auto kept, settled.kept_index->Of(settled, receipts));
    if (kept) {
      return finish(*std::move(kept));
    }
  }
  HeaderMerge merge;
  KeptIndex::WrittenObjects written;
  AlikeFiles alike(settled);
  WriteReceipt receipt;  // Of the rank that is added.
  const auto add = [&](std::uint32_t rank, const LocalPlan& plan,
                       const RankAssignment& assignment) -> Status {
    if (!assignment.objects.empty()) {
      written[rank] = assignment.objects;
    }
    VARVE_ASSIGN_OR_RETURN(FilePlan file, PlanFile(plan, assignment, identity));
    alike.Follow(rank, assignment, file);
    VARVE_RETURN_IF_ERROR(ApplyReceipt(receipt, &file.header));
    return merge.Add({std::move(file.header), receipt.header_bytes, receipt.header_crc32c});
  };
  for (identity.rank = 0; identity.rank < receipts.size(); ++identity.rank) {
    VARVE_ASSIGN_OR_RETURN(receipt, DecodeReceipt(receipts[identity.rank]));
    VARVE_ASSIGN_OR_RETURN(const bool added, AddAlike(identity, receipt, alike, &merge));
    if (!added) {
      VARVE_RETURN_IF_ERROR(settled.VisitRank(identity.rank, add));
    } else if (!alike.objects().empty()) {
      written[identity.rank] = alike.objects();
    }
  }
  VARVE_ASSIGN_OR_RETURN(Metadata metadata, merge.Finish());
  if (settled.kept_index != nullptr) {
    (void)Guarded([&] {  // Without memory for it the next save makes its index anew.
      settled.kept_index->Keep(settled, metadata, std::move(written));
    });
  }
  return finish(std::move(metadata));
}

namespace {

Status Check(const SettledSave& settled) { return CheckNative(settled, settled.identity); }

Result<RankFile> LayOutFile(const State* state, const SettledSave& settled) {
  return LayOutNative(state, settled, settled.identity);
}

Result<CheckpointIndex> MakeIndex(const SettledSave& settled,
                                  const std::vector<std::string>& receipts,
                                  const std::string& /*below*/) {
  return MakeNativeIndex(settled, receipts, settled.identity);
}

}  // namespace

const WrittenFormat kNativeFormat{.format = Format::kVarve,
                                  .rank_local = true,
                                  .holds_variants = true,
                                  .takes_folded = true,
                                  .check_own = CheckOwnHeaderSize,
                                  .check = Check,
                                  .lay_out = LayOutFile,
                                  .make_index = MakeIndex};

}  // namespace varve
