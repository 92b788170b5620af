/// The fields of plans, see base/fields.h.
#pragma once

#include <algorithm>

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
void Fields(Archive& archive, FieldsOf<Archive, PlannedTensor>& item) {
  archive(item.fqn, item.dtype, item.shape, item.box);
  archive.Fixed(item.fingerprint);
  archive(item.tied_to, item.part_of);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ObjectItem>& item) {
  archive(item.fqn, item.bytes, item.content);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, LocalPlan>& plan) {
  archive(plan.tensors, plan.objects, plan.structure);
  archive.Check(
      [&] {
        return std::all_of(plan.tensors.begin(), plan.tensors.end(),
                           [&](const PlannedTensor& item) {
                             return (!item.tied_to || *item.tied_to < plan.tensors.size()) &&
                                    (!item.part_of || *item.part_of < plan.objects.size());
                           });
      },
      "a tensor is tied to one, or part of a value, that the plan does not have");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ChunkAssignment>& chunk) {
  archive(chunk.item, chunk.box);
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
