/// The fields of plans, see base/fields.h.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/fields.h"
#include "format/data_file.h"
#include "plan/save_plan.h"
#include "tensor/fields.h"

namespace varve {

inline constexpr std::uint32_t kMostRanks = 1 << 20;  // A save begins with memory for each rank.

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, Hash128>& hash) {
  archive(hash.bytes);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, FileIdentity>& identity) {
  archive(identity.save_id.bytes, identity.rank, identity.world_size, identity.coordinated);
  archive(identity.created_ns, identity.block_bytes);
  archive.Check(
      [&] { return identity.rank < identity.world_size && identity.world_size <= kMostRanks; },
      "a rank outside of its world");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ObjectItem>& item) {
  archive(item.fqn, item.bytes, item.content);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ChunkAssignment>& chunk) {
  std::optional<Box> part;
  if constexpr (Archive::kWrites) {
    if (chunk.part) {
      part = *chunk.part;
    }
  }
  archive(chunk.item, part);
  if constexpr (!Archive::kWrites) {
    chunk.part = part ? std::make_shared<const Box>(std::move(*part)) : nullptr;
  }
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankRange>& range) {
  archive(range.first, range.last, range.step);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, VariantAssignment>& variant) {
  archive(variant.item, variant.ranks);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, RankAssignment>& assignment) {
  archive(assignment.chunks, assignment.objects, assignment.structure, assignment.aliases);
  archive(assignment.tensor_variants, assignment.object_variants);
}

}  // namespace varve
