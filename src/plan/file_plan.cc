#include "plan/file_plan.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/checked.h"
#include "format/variants.h"
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
    const PlannedTensor& item = plan.tensors[i];
    const PlannedTensor& of = plan.tensors[*item.tied_to];
    if (const auto* variant = FindVariant(assignment.tensor_variants, *item.tied_to)) {
      aliases.emplace(NameInFile(item, *variant), NameInFile(of, *variant));
    } else {
      aliases.emplace(item.fqn(), of.fqn());
    }
  }
  for (const auto& [fqn, of] : aliases) {
    header->aliases.push_back({fqn, of});
  }
  return Status::Ok();
}

/// Returns a chunk of an item as the file has it, named by its tensor or by the variant it is of.
StoredChunk ChunkOf(const PlannedTensor& item, const Box& box, const VariantAssignment* variant) {
  if (variant == nullptr) {
    return {item.of, box};
  }
  Box within = box;
  for (std::size_t d = 0; d < within.offsets.size(); ++d) {
    within.offsets[d] -= item.box.offsets[d];
  }
  return {NameInFile(item, *variant), item.dtype(), item.box.sizes, std::move(within)};
}

}  // namespace

const VariantAssignment* FindVariant(const std::vector<VariantAssignment>& variants,
                                     std::uint32_t item) {
  const auto at = std::lower_bound(
      variants.begin(), variants.end(), item,
      [](const VariantAssignment& variant, std::uint32_t key) { return variant.item < key; });
  return at != variants.end() && at->item == item ? &*at : nullptr;
}

std::string NameInFile(const PlannedTensor& item, const VariantAssignment& variant) {
  VariantName name{item.fqn(), variant.ranks, std::nullopt};
  if (!(item.box == WholeBox(item.shape()))) {
    name.offsets = item.box.offsets;
  }
  return ToString(name);
}

std::string NameInFile(const ObjectItem& item, const VariantAssignment& variant) {
  return ToString(VariantName{item.fqn, variant.ranks, std::nullopt});
}

Result<FilePlan> PlanFile(const LocalPlan& plan, const RankAssignment& assignment,
                          const FileIdentity& identity) {
  FilePlan file;
  file.header.identity = identity;
  std::vector<StoredChunk> chunks;
  chunks.reserve(assignment.chunks.size());
  for (const ChunkAssignment& chunk : assignment.chunks) {
    if (chunk.item >= plan.tensors.size()) {
      return Internal("assignment names shard " + std::to_string(chunk.item) + " of " +
                      std::to_string(plan.tensors.size()));
    }
    const PlannedTensor& item = plan.tensors[chunk.item];
    const Box& box = chunk.BoxIn(plan);
    if (box.sizes.size() != item.box.sizes.size() || !Contains(item.box, box)) {
      return Internal("assignment reaches outside the shard of tensor \"" + item.fqn() + "\"");
    }
    chunks.push_back(ChunkOf(item, box, FindVariant(assignment.tensor_variants, chunk.item)));
  }
  // In file order, so that LayOut keeps it and chunk_items stay parallel. Mostly they are.
  std::vector<std::uint32_t> order(chunks.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return ChunkBefore(chunks[a], chunks[b]);
  };
  if (std::is_sorted(order.begin(), order.end(), before)) {
    file.header.chunks = std::move(chunks);
  } else {
    std::stable_sort(order.begin(), order.end(), before);
    file.header.chunks.reserve(chunks.size());
    for (const std::uint32_t i : order) {
      file.header.chunks.push_back(std::move(chunks[i]));
    }
  }
  file.chunk_items.reserve(order.size());
  file.chunk_boxes.reserve(order.size());
  for (const std::uint32_t i : order) {
    file.chunk_items.push_back(assignment.chunks[i].item);
    file.chunk_boxes.push_back(assignment.chunks[i].BoxIn(plan));
  }
  for (const std::uint32_t i : assignment.objects) {
    if (i >= plan.objects.size()) {
      return Internal("assignment names object " + std::to_string(i) + " of " +
                      std::to_string(plan.objects.size()));
    }
    const ObjectItem& item = plan.objects[i];
    const auto* variant = FindVariant(assignment.object_variants, i);
    file.header.objects.push_back({variant == nullptr ? item.fqn : NameInFile(item, *variant),
                                   {0, item.bytes},
                                   identity.coordinated ? Hash128() : item.content});
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
}

Bytes EncodeReceipt(const WriteReceipt& receipt) { return EncodeFields(receipt); }
Result<WriteReceipt> DecodeReceipt(std::string_view bytes) {
  return DecodeFields<WriteReceipt>(bytes).Annotate("decode write receipt");
}

Status CheckReceipt(const WriteReceipt& receipt, std::uint64_t data_bytes,
                    std::uint64_t block_bytes) {
  return receipt.block_crc32c.size() == DivideUp(data_bytes, block_bytes)
             ? Status::Ok()
             : Internal("a write receipt does not fit its plan");
}

Status ApplyReceipt(const WriteReceipt& receipt, DataFileHeader* header) {
  VARVE_RETURN_IF_ERROR(CheckReceipt(receipt, header->data_bytes, header->identity.block_bytes)
                            .Annotate("rank " + std::to_string(header->identity.rank)));
  header->block_crc32c = receipt.block_crc32c;
  return Status::Ok();
}

}  // namespace varve
