/// The plan of a save: which rank writes what. Pure and deterministic: the same local plans give
/// the same settled plan on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tensor/tensor_spec.h"
#include "varve/hash.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

class ReplicaPattern;

/// The fingerprint of a shard that no other rank is expected to hold: none was taken.
inline constexpr std::uint64_t kUnhashed = ~std::uint64_t{0};

/// A shard of a tensor that a rank holds. Ranks that hold the same box of the same tensor are its
/// replicas.
struct PlannedTensor {
  PlannedTensor() = default;
  PlannedTensor(SharedSpec spec, Box where) : of(std::move(spec)), box(std::move(where)) {}
  PlannedTensor(std::string fqn, DType dtype, Dims shape, Box where)
      : PlannedTensor(MakeSpec(std::move(fqn), dtype, std::move(shape)), std::move(where)) {}

  SharedSpec of;
  Box box;
  /// Hash of (samples of) the shard's bytes, by which replicas are compared. 0: unknown; or
  /// kUnhashed.
  std::uint64_t fingerprint = 0;
  /// The item of the same plan whose memory this one is too; nothing for most.
  std::optional<std::uint32_t> tied_to{};
  /// The object of the same plan in whose archive this tensor is a storage
  /// (SourceObject::storages). One rank writes both, and the tensor whole.
  std::optional<std::uint32_t> part_of{};
  /// So many tensors of the rank's plan are one item: more than one in folded plans alone (fold.h).
  std::uint32_t alike = 1;

  [[nodiscard]] const std::string& fqn() const { return of->fqn; }
  [[nodiscard]] DType dtype() const { return of->dtype; }
  [[nodiscard]] const Dims& shape() const { return of->shape; }
  friend bool operator==(const PlannedTensor& a, const PlannedTensor& b) {
    return AreEqual(a.of, b.of) && a.box == b.box && a.fingerprint == b.fingerprint &&
           a.tied_to == b.tied_to && a.part_of == b.part_of && a.alike == b.alike;
  }
};

/// A plain value that a rank holds.
struct ObjectItem {
  std::string fqn;
  std::uint64_t bytes = 0;  ///< Encoded size.
  Hash128 content;          ///< Of the encoding; tells whether replicas agree.
  friend bool operator==(const ObjectItem&, const ObjectItem&) = default;
};

/// All that one rank could write.
struct LocalPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<ObjectItem> objects;
  Bytes structure;  ///< Encoded Value.
  friend bool operator==(const LocalPlan&, const LocalPlan&) = default;
};

/// One of the rank's own shards, or a part of it: `item` indexes LocalPlan::tensors.
struct ChunkAssignment {
  static constexpr std::uint32_t kAllMembers = ~std::uint32_t{0};

  std::uint32_t item = 0;
  /// The part's box in the whole tensor; null where it is all of the shard, as it mostly is.
  std::shared_ptr<const Box> part{};
  /// Of the tensors that a folded plan's item stands for (PlannedTensor::alike), the one that is
  /// meant.
  std::uint32_t member{kAllMembers};

  /// `plan` is the rank's.
  [[nodiscard]] const Box& BoxIn(const LocalPlan& plan) const {
    return part ? *part : plan.tensors[item].box;
  }
  friend bool operator==(const ChunkAssignment& a, const ChunkAssignment& b) {
    return a.item == b.item && a.member == b.member &&
           (a.part == b.part || (a.part && b.part && *a.part == *b.part));
  }
};

/// Returns the assignment of a box of the item of a rank's plan.
ChunkAssignment Assigned(const LocalPlan& plan, std::uint32_t item, const Box& box);

/// A tensor or value of the rank's own plan that is stored as a variant: beside the lowest rank's
/// value, not as the value of its name. `item` indexes LocalPlan::tensors or LocalPlan::objects.
struct VariantAssignment {
  std::uint32_t item = 0;
  std::vector<RankRange> ranks;  ///< All ranks that hold this value.
  friend bool operator==(const VariantAssignment&, const VariantAssignment&) = default;
};

/// The parts of a plan that one rank writes.
struct RankAssignment {
  std::vector<ChunkAssignment> chunks;
  std::vector<std::uint32_t> objects;  ///< Indices into LocalPlan::objects, ascending.
  Bytes structure;                     ///< The merged structure on rank 0, empty elsewhere.
  /// Items that are stored under the name of the item they are tied to, which is among `chunks`.
  /// Indices into LocalPlan::tensors, ascending.
  std::vector<std::uint32_t> aliases{};
  /// The items among `chunks`, and among `objects`, that are variants. Ascending.
  std::vector<VariantAssignment> tensor_variants{};
  std::vector<VariantAssignment> object_variants{};
  friend bool operator==(const RankAssignment&, const RankAssignment&) = default;
};

struct SettledPlan {
  std::vector<RankAssignment> ranks;
  /// Objects whose replicas differ. Sorted.
  std::vector<std::string> differing_objects;
  /// Tensors with a shard whose replicas have different fingerprints. Sorted.
  std::vector<std::string> differing_tensors;
  /// A shard that several ranks hold is kUnhashed on some of them, or stands for several tensors and
  /// its holders have different fingerprints. Then nothing else here is of use: plans that are not
  /// folded, with all fingerprints, are needed.
  bool lacks_fingerprints = false;
  friend bool operator==(const SettledPlan&, const SettledPlan&) = default;
};

/// Compact binary forms, for exchange between ranks of one job (never stored).
Bytes EncodeAssignment(const RankAssignment& assignment);
Result<RankAssignment> DecodeAssignment(std::string_view bytes);

/// Checks one rank's plan on its own: names, geometry, duplicates.
/// Errors: InvalidArgument naming the tensor or object.
Status CheckLocalPlan(const LocalPlan& plan);

/// What is stored of a shard, or of a plain value, whose replicas differ.
enum class Differing : std::uint8_t {
  kFirst,  ///< The lowest rank's value.
  kKeep,   ///< Each value once; those of other ranks as variants.
};

/// Whether a shard that several ranks hold may be cut among them.
enum class Replicas : std::uint8_t {
  kCut,
  kWhole,  ///< What is stored is one rank's, also where replicas differ and samples are equal.
};

/// Settles all ranks' plans. Each distinct shard is written exactly once; replicated ones are
/// spread over the ranks that hold them so that all write about the same number of bytes, split
/// where they are larger than a rank's fair share. A shard whose replicas differ is not split: what
/// is stored is one rank's. Tensors that are tied on all their holders are written under one name.
/// `differing` says what is stored where ranks hold different values under one name. Adds to
/// `pattern`, unless it is null, what several ranks hold.
/// Errors: InvalidArgument when ranks disagree about a tensor, when shards overlap without being
/// equal, or when no rank holds a part of a tensor (named).
Result<SettledPlan> Settle(const std::vector<LocalPlan>& plans,
                           Differing differing = Differing::kFirst,
                           ReplicaPattern* pattern = nullptr, Replicas replicas = Replicas::kCut);

/// Returns the plan of an uncoordinated save: the rank writes all it holds.
RankAssignment AssignEverything(const LocalPlan& plan);

}  // namespace varve
