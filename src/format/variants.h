/// Variants: the values of ranks that held another value under a name than the lowest rank.
/// In files and in the manifest each is an entry of its own, whose name says which ranks had it
/// (docs/format.md, section 2). Readers without that knowledge see the lowest rank's value under
/// the name itself. In Metadata variants are apart from tensors and objects. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/tensor.h"

namespace varve {

/// Data files with variants have at least this version of the format.
inline constexpr std::uint32_t kVariantFormatVersion = 3;

/// The meaning of a variant's name.
struct VariantName {
  std::string fqn;  ///< Of the tensor or value that it is a variant of.
  std::vector<RankRange> ranks;
  std::optional<Dims> offsets;  ///< Of its box; nothing where it is the whole, and for values.
  friend bool operator==(const VariantName&, const VariantName&) = default;
};

/// Returns the fewest ranges that a pass from below finds. `ranks` ascend.
std::vector<RankRange> RangesOf(std::span<const std::uint32_t> ranks);

[[nodiscard]] bool HasRank(std::span<const RankRange> ranks, std::uint32_t rank);

/// Returns "1,3-5,8-64:8": single ranks, ranges, and ranges with a step.
std::string ToString(std::span<const RankRange> ranks);

/// Returns whether a name is that of a variant, by its beginning alone.
bool IsVariantName(std::string_view name);

/// Returns "__varve__.ranks.1,3-5@[4, 0].w".
std::string ToString(const VariantName& name);

/// Errors: DataLoss.
Result<VariantName> ParseVariantName(std::string_view name);

/// Moves the tensors and objects that are variants by their names to where Metadata has them.
/// Errors: DataLoss when there is nothing that one could be a variant of.
Status SeparateVariants(Metadata* metadata);

/// Returns the metadata with its variants as tensors and objects, by name: what SeparateVariants
/// takes apart.
Metadata WithVariantsAsEntries(const Metadata& metadata);

/// Returns the metadata in which each tensor and object has the value that `rank` held when it was
/// saved, and the lowest rank's where it held none.
Metadata ValuesOfRank(const Metadata& metadata, std::uint32_t rank);

}  // namespace varve
