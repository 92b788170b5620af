#include "save/plans/alike_files.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace varve {
namespace {

std::vector<Box> BoxesOf(std::vector<FamilyShards> shards) {
  std::vector<Box> boxes;
  boxes.reserve(shards.size());
  for (FamilyShards& family : shards) {
    boxes.push_back(std::move(family.box));
  }
  return boxes;
}

/// Returns true where the tensors that a rank writes are whole shards, under their own names alone.
bool IsOfWholeShards(const RankAssignment& assignment) {
  return assignment.structure.empty() && assignment.aliases.empty() &&
         assignment.tensor_variants.empty() &&
         std::none_of(assignment.chunks.begin(), assignment.chunks.end(),
                      [](const ChunkAssignment& chunk) { return chunk.part != nullptr; });
}

/// Moves what lies in a file by so many bytes.
void MoveBy(std::uint64_t bytes, DataFileHeader* header) {
  for (StoredObject& object : header->objects) {
    object.bytes = {object.bytes.begin + bytes, object.bytes.end + bytes};
  }
  header->data_bytes += bytes;
}

}  // namespace

void AlikeFiles::Follow(std::uint32_t rank, const RankAssignment& assignment,
                        const FilePlan& file) {
  rank_ = 0;
  if (rank == 0 || !IsOfWholeShards(assignment)) {
    return;
  }
  const EncodedPlan plan = settled_.others->Encoded(rank);
  const auto parts = SplitShares(plan.shares);
  if (!parts.ok()) {
    return;
  }
  if (plan.table != table_ || parts->families != encoded_families_) {
    auto families = Families::Decode(parts->families, *plan.table);
    if (!families.ok()) {
      return;
    }
    families_ = *std::move(families);
    table_ = plan.table;
    encoded_families_ = parts->families;
  }
  auto shards = DecodeFamilyShards(*parts, families_, *plan.table);
  if (!shards.ok()) {
    return;
  }
  boxes_ = BoxesOf(*std::move(shards));
  of_chunk_.clear();
  for (const std::uint32_t item : file.chunk_items) {
    of_chunk_.push_back(families_.family[item]);
  }
  chunk_bytes_ = file.header.chunks.empty() ? 0 : file.header.chunks.back().bytes.end;
  values_ = {};
  values_.objects = assignment.objects;
  values_.object_variants = assignment.object_variants;
  rank_ = rank;
}

Result<std::optional<AlikeFiles::File>> AlikeFiles::FileOf(const FileIdentity& identity) const {
  const RankPlans& plans = *settled_.others;
  std::optional<File> none;
  if (rank_ == 0 || !plans.HaveOneAssignment(identity.rank, rank_)) {
    return none;
  }
  const EncodedPlan encoded = plans.Encoded(identity.rank);
  auto parts = SplitShares(encoded.shares);
  if (encoded.table != table_ || !parts.ok() || parts->families != encoded_families_) {
    return none;
  }
  auto shards = DecodeFamilyShards(*parts, families_, *encoded.table);
  if (!shards.ok()) {
    return none;
  }
  std::vector<Box> boxes = BoxesOf(*std::move(shards));
  if (!std::equal(boxes.begin(), boxes.end(), boxes_.begin(), boxes_.end(),
                  [](const Box& a, const Box& b) { return a.sizes == b.sizes; })) {
    return none;
  }
  LocalPlan values;
  values.objects = std::move(parts->objects);
  VARVE_RETURN_IF_ERROR(settled_.ApplySizesOf(identity.rank, &values));
  VARVE_ASSIGN_OR_RETURN(FilePlan file, PlanFile(values, values_, identity));
  MoveBy(chunk_bytes_, &file.header);
  return std::optional(File{std::move(file.header), std::move(boxes)});
}

}  // namespace varve
