#include "save/plans/kept_index.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "format/chunk_grid.h"
#include "format/variants.h"
#include "plan/file_plan.h"

namespace varve {
namespace {

/// Returns the size that a value of a rank has in place of the one in its plan.
std::optional<std::uint64_t> SizeOf(const std::map<std::uint32_t, std::vector<ObjectSize>>& sizes,
                                    std::uint32_t rank, std::uint32_t item) {
  const auto of_rank = sizes.find(rank);
  if (of_rank == sizes.end()) {
    return std::nullopt;
  }
  const auto found = std::find_if(of_rank->second.begin(), of_rank->second.end(),
                                  [&](const ObjectSize& size) { return size.item == item; });
  return found == of_rank->second.end() ? std::nullopt : std::optional(found->bytes);
}

/// Returns about how much memory an index takes.
std::size_t BytesOf(const Metadata& metadata) {
  constexpr std::size_t kEntryBytes = 256;
  std::size_t bytes =
      (metadata.files.size() + metadata.tensors.size() + metadata.objects.size()) * kEntryBytes;
  for (const TensorMetadata& tensor : metadata.tensors) {
    const ChunkGrid* const grid = tensor.chunks.grid();
    bytes += tensor.fqn.size() + (grid != nullptr ? grid->runs.size() * sizeof(ChunkRun)
                                                  : tensor.chunks.size() * kEntryBytes);
  }
  bytes += metadata.object_variants.size() * kEntryBytes;
  for (const TensorVariant& variant : metadata.tensor_variants) {
    bytes += variant.chunks.size() * kEntryBytes;
  }
  return bytes;
}

/// Returns the place of a value in the index, by the name that its file has for it; null where it
/// has none.
Extent* PlaceOf(const std::string& name, std::uint32_t file, Metadata* index) {
  const auto found = std::lower_bound(
      index->objects.begin(), index->objects.end(), name,
      [](const ObjectMetadata& one, const std::string& fqn) { return one.fqn < fqn; });
  if (found != index->objects.end() && found->fqn == name) {
    return &found->extent;
  }
  for (ObjectVariant& variant : index->object_variants) {
    if (variant.extent.file == file &&
        ToString(VariantName{variant.fqn, variant.ranks, std::nullopt}) == name) {
      return &variant.extent;
    }
  }
  return nullptr;
}

/// Puts the places of the values of a rank's file, and its size, into the index.
Status PlaceValues(const FilePlan& plan, std::uint32_t rank, Metadata* index) {
  DataFile& file = index->files[rank];
  const std::uint64_t begin = file.data_begin;
  file.size = begin + plan.header.data_bytes;
  for (const StoredObject& stored : plan.header.objects) {
    Extent* const place = PlaceOf(stored.fqn, rank, index);
    if (place == nullptr) {
      return Internal("the value \"" + stored.fqn + "\" is not in the index of before");
    }
    *place = {rank, begin + stored.bytes.begin, begin + stored.bytes.end};
  }
  for (Extent& extent : index->structures) {
    if (extent.file == rank && plan.header.structure) {
      extent = {rank, begin + plan.header.structure->begin, begin + plan.header.structure->end};
    }
  }
  return Status::Ok();
}

}  // namespace

/// Returns true where a value that the rank writes has another size than in the index.
bool KeptIndex::Kept::HasOtherSizes(const SettledSave& settled, std::uint32_t rank) const {
  const auto items = written.find(rank);
  return items != written.end() &&
         std::any_of(items->second.begin(), items->second.end(), [&](std::uint32_t item) {
           return rank == 0 ? own_sizes[item] != settled.plan().objects[item].bytes
                            : SizeOf(sizes, rank, item) != SizeOf(settled.sizes, rank, item);
         });
}

Result<std::optional<Metadata>> KeptIndex::Of(const SettledSave& settled,
                                              const std::vector<std::string>& receipts) const {
  std::shared_ptr<const Kept> kept;
  {
    const std::scoped_lock lock(mutex_);
    kept = kept_;
  }
  std::optional<Metadata> made;
  if (kept == nullptr || kept->metadata.files.size() != receipts.size()) {
    return made;
  }
  made = kept->metadata;
  made->save_id = settled.identity.save_id;
  const auto place = [&](std::uint32_t rank, const LocalPlan& plan,
                         const RankAssignment& assignment) -> Status {
    VARVE_ASSIGN_OR_RETURN(const FilePlan file, PlanFile(plan, assignment, settled.identity));
    return PlaceValues(file, rank, &*made);
  };
  for (std::uint32_t rank = 0; rank < receipts.size(); ++rank) {
    DataFile& file = made->files[rank];
    VARVE_ASSIGN_OR_RETURN(WriteReceipt receipt, DecodeReceipt(receipts[rank]));
    if (receipt.header_bytes != file.data_begin) {
      return std::optional<Metadata>();
    }
    if (kept->HasOtherSizes(settled, rank)) {
      VARVE_RETURN_IF_ERROR(settled.VisitRank(rank, place));
    }
    VARVE_RETURN_IF_ERROR(CheckReceipt(receipt, file.size - file.data_begin, made->block_bytes)
                              .Annotate("rank " + std::to_string(rank)));
    file.header_crc32c = receipt.header_crc32c;
    file.block_crc32c = std::move(receipt.block_crc32c);
  }
  return made;
}

void KeptIndex::Keep(const SettledSave& settled, const Metadata& metadata, WrittenObjects written) {
  if (BytesOf(metadata) > kMostBytes) {
    return;
  }
  auto kept = std::make_shared<Kept>();
  kept->metadata = metadata;
  for (DataFile& file : kept->metadata.files) {
    file.block_crc32c = {};
  }
  kept->written = std::move(written);
  for (const ObjectItem& object : settled.plan().objects) {
    kept->own_sizes.push_back(object.bytes);
  }
  kept->sizes = settled.sizes;
  const std::scoped_lock lock(mutex_);
  kept_ = std::move(kept);
}

}  // namespace varve
