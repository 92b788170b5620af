#include "plan/file_plan.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "base/checked.h"
#include "plan/fields.h"
#include "tensor/box.h"

namespace varve {

namespace {

Status AddAliases(const LocalPlan& plan, const RankAssignment& assignment, DataFileHeader* header) {
  std::set<std::pair<std::string, std::string>> aliases;  // Once, however many shards there are.
  for (const std::uint32_t i : assignment.aliases) {
    if (i >= plan.tensors.size() || !plan.tensors[i].tied_to) {
      return Internal("assignment names shard " + std::to_string(i) + " as tied, which it is not");
    }
    aliases.emplace(plan.tensors[i].fqn, plan.tensors[*plan.tensors[i].tied_to].fqn);
  }
  for (const auto& [fqn, of] : aliases) {
    header->aliases.push_back({fqn, of});
  }
  return Status::Ok();
}

}  // namespace

Result<FilePlan> PlanFile(const LocalPlan& plan, const RankAssignment& assignment,
                          const FileIdentity& identity) {
  FilePlan file;
  file.header.save_id = identity.save_id;
  file.header.rank = identity.rank;
  file.header.world_size = identity.world_size;
  file.header.coordinated = identity.coordinated;
  file.header.created_ns = identity.created_ns;
  file.header.block_bytes = identity.block_bytes;

  std::vector<StoredChunk> chunks;
  chunks.reserve(assignment.chunks.size());
  for (const ChunkAssignment& chunk : assignment.chunks) {
    if (chunk.item >= plan.tensors.size()) {
      return Internal("assignment names shard " + std::to_string(chunk.item) + " of " +
                      std::to_string(plan.tensors.size()));
    }
    const PlannedTensor& item = plan.tensors[chunk.item];
    if (chunk.box.sizes.size() != item.box.sizes.size() || !Contains(item.box, chunk.box)) {
      return Internal("assignment reaches outside the shard of tensor \"" + item.fqn + "\"");
    }
    chunks.push_back({item.fqn, item.dtype, item.shape, chunk.box, {}, {}});
  }
  // In file order, so that LayOut keeps it and chunk_items stay parallel.
  std::vector<std::uint32_t> order(chunks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return ChunkBefore(chunks[a], chunks[b]);
  });
  for (const std::uint32_t i : order) {
    file.header.chunks.push_back(std::move(chunks[i]));
    file.chunk_items.push_back(assignment.chunks[i].item);
  }
  for (const std::uint32_t i : assignment.objects) {
    if (i >= plan.objects.size()) {
      return Internal("assignment names object " + std::to_string(i) + " of " +
                      std::to_string(plan.objects.size()));
    }
    file.header.objects.push_back({plan.objects[i].fqn, {0, plan.objects[i].bytes}});
    file.object_items.push_back(i);
  }
  VARVE_RETURN_IF_ERROR(AddAliases(plan, assignment, &file.header));
  if (!assignment.structure.empty()) {
    file.header.structure = ByteRange{0, assignment.structure.size()};
  }
  VARVE_RETURN_IF_ERROR(LayOut(&file.header));
  return file;
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, WriteReceipt>& receipt) {
  archive(receipt.header_bytes);
  archive.Fixed(receipt.header_crc32c);
  archive.Fixed(receipt.block_crc32c);
  archive(receipt.contents);
}

Bytes EncodeReceipt(const WriteReceipt& receipt) { return EncodeFields(receipt); }
Result<WriteReceipt> DecodeReceipt(std::string_view bytes) {
  return DecodeFields<WriteReceipt>(bytes).Annotate("decode write receipt");
}

Status ApplyReceipt(const WriteReceipt& receipt, DataFileHeader* header) {
  if (receipt.contents.size() != header->chunks.size() ||
      receipt.block_crc32c.size() != DivideUp(header->data_bytes, header->block_bytes)) {
    return Internal("write receipt of rank " + std::to_string(header->rank) +
                    " does not fit its plan");
  }
  header->block_crc32c = receipt.block_crc32c;
  for (std::size_t i = 0; i < header->chunks.size(); ++i) {
    header->chunks[i].content = receipt.contents[i];
  }
  return Status::Ok();
}

}  // namespace varve
