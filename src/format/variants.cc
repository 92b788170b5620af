#include "format/variants.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <limits>
#include <system_error>
#include <tuple>
#include <utility>

#include "format/chunk_grid.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

constexpr std::string_view kPrefix = "__varve__.ranks.";

/// Takes a number from the front of `text`; nothing where there is none.
template <class Number>
std::optional<Number> TakeNumber(std::string_view* text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc()) {
    return std::nullopt;
  }
  text->remove_prefix(static_cast<std::size_t>(end - text->data()));
  return number;
}

bool Take(std::string_view what, std::string_view* text) {
  if (!text->starts_with(what)) {
    return false;
  }
  text->remove_prefix(what.size());
  return true;
}

std::optional<RankRange> TakeRange(std::string_view* text) {
  const auto first = TakeNumber<std::uint32_t>(text);
  if (!first) {
    return std::nullopt;
  }
  RankRange range{*first, *first, 1};
  if (!Take("-", text)) {
    return range;
  }
  const auto last = TakeNumber<std::uint32_t>(text);
  const auto step = Take(":", text) ? TakeNumber<std::uint32_t>(text) : std::uint32_t{1};
  if (!last || !step || *last <= *first || *step == 0 || (*last - *first) % *step != 0) {
    return std::nullopt;
  }
  return RankRange{*first, *last, *step};
}

std::optional<Dims> TakeOffsets(std::string_view* text) {
  Dims offsets;
  do {
    const auto offset = TakeNumber<std::uint64_t>(text);
    if (!offset) {
      return std::nullopt;
    }
    offsets.push_back(*offset);
  } while (Take(", ", text));
  return Take("]", text) ? std::optional(std::move(offsets)) : std::nullopt;
}

std::optional<VariantName> Parse(std::string_view name) {
  VariantName parsed;
  if (!Take(kPrefix, &name)) {
    return std::nullopt;
  }
  do {
    const auto range = TakeRange(&name);
    if (!range || (!parsed.ranks.empty() && range->first <= parsed.ranks.back().first)) {
      return std::nullopt;
    }
    parsed.ranks.push_back(*range);
  } while (Take(",", &name));
  if (Take("@[", &name)) {
    parsed.offsets = TakeOffsets(&name);
    if (!parsed.offsets) {
      return std::nullopt;
    }
  }
  if (!Take(".", &name)) {
    return std::nullopt;
  }
  parsed.fqn = std::string(name);
  return parsed;
}

Status Unfounded(std::string_view name, std::string_view why) {
  return DataLoss("\"" + std::string(name) + "\", a value of some ranks, " + std::string(why));
}

Status CheckRanks(const std::string& name, const VariantName& parsed, std::uint32_t world_size) {
  const bool inside = std::all_of(parsed.ranks.begin(), parsed.ranks.end(),
                                  [&](const RankRange& range) { return range.last < world_size; });
  return inside ? Status::Ok() : Unfounded(name, "is of a rank outside of the world");
}

/// Returns the box of a variant, from what its name and its entry say of it.
Result<Box> BoxOf(const TensorMetadata& entry, const VariantName& parsed,
                  const TensorMetadata* of) {
  if (of == nullptr || of->dtype != entry.dtype || of->shape.size() != entry.shape.size()) {
    return Unfounded(entry.fqn, "has no tensor of its kind beside it");
  }
  const Box box{parsed.offsets ? *parsed.offsets : Dims(entry.shape.size(), 0), entry.shape};
  if (box.offsets.size() != box.sizes.size() ||
      !CheckBox(of->shape, box, ItemSize(of->dtype)).ok() ||
      (!parsed.offsets && box.sizes != of->shape)) {
    return Unfounded(entry.fqn, "is no part of its tensor");
  }
  const bool fits = std::all_of(of->chunks.begin(), of->chunks.end(), [&](const Chunk& chunk) {
    return Contains(box, chunk.box) || !Intersect(box, chunk.box);
  });
  return fits ? Result<Box>(box) : Unfounded(entry.fqn, "cuts a chunk of its tensor");
}

/// Returns the one name that a variant of a box of tensor `of` has.
VariantName NameOf(std::string fqn, std::vector<RankRange> ranks, const Box& box,
                   const TensorMetadata& of) {
  VariantName name{std::move(fqn), std::move(ranks), std::nullopt};
  if (!(box == WholeBox(of.shape))) {
    name.offsets = box.offsets;
  }
  return name;
}

/// Moves the offsets of a box by those of `origin`.
Box Moved(Box box, const Dims& origin, bool forth) {
  for (std::size_t d = 0; d < box.offsets.size(); ++d) {
    box.offsets[d] = forth ? box.offsets[d] + origin[d] : box.offsets[d] - origin[d];
  }
  return box;
}

/// Takes the elements with names of variants out of a list that is sorted by name.
template <class Entry>
std::vector<Entry> TakeVariants(std::vector<Entry>* entries) {
  const auto begin = std::partition_point(entries->begin(), entries->end(),
                                          [](const Entry& entry) { return entry.fqn < kPrefix; });
  const auto end = std::find_if(begin, entries->end(),
                                [](const Entry& entry) { return !IsVariantName(entry.fqn); });
  std::vector<Entry> taken(std::make_move_iterator(begin), std::make_move_iterator(end));
  entries->erase(begin, end);
  return taken;
}

/// Checks that boxes of which one tensor has variants are equal or disjoint. They are sorted.
Status CheckBoxes(const std::vector<TensorVariant>& variants) {
  for (std::size_t begin = 0; begin < variants.size();) {
    std::vector<Box> boxes;
    std::size_t end = begin;
    for (; end < variants.size() && variants[end].fqn == variants[begin].fqn; ++end) {
      if (boxes.empty() || !(boxes.back() == variants[end].box)) {
        boxes.push_back(variants[end].box);
      }
    }
    const auto overlap = FindOverlap(boxes);
    if (!overlap.ok() || *overlap) {
      return DataLoss("tensor \"" + variants[begin].fqn +
                      "\" has values of some ranks for boxes that overlap");
    }
    begin = end;
  }
  return Status::Ok();
}

template <class Entry>
void SortByName(std::vector<Entry>* entries) {
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return a.fqn < b.fqn; });
}

}  // namespace

std::vector<RankRange> RangesOf(std::span<const std::uint32_t> ranks) {
  std::vector<RankRange> ranges;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    const std::uint32_t step = end < ranks.size() ? ranks[end] - ranks[i] : 1;
    while (end < ranks.size() && ranks[end] - ranks[end - 1] == step) {
      ++end;
    }
    if (end - i == 2 && step != 1) {
      end = i + 1;  // Two ranks are a range only where they are neighbours.
    }
    ranges.push_back({ranks[i], ranks[end - 1], end - i == 1 ? 1 : step});
    i = end;
  }
  return ranges;
}

bool HasRank(std::span<const RankRange> ranks, std::uint32_t rank) {
  return std::any_of(ranks.begin(), ranks.end(), [&](const RankRange& range) {
    return range.first <= rank && rank <= range.last && (rank - range.first) % range.step == 0;
  });
}

std::string ToString(std::span<const RankRange> ranks) {
  std::string text;
  for (const RankRange& range : ranks) {
    text += (text.empty() ? "" : ",") + std::to_string(range.first);
    text += range.last == range.first ? "" : "-" + std::to_string(range.last);
    text += range.step == 1 ? "" : ":" + std::to_string(range.step);
  }
  return text;
}

bool IsVariantName(std::string_view name) { return name.starts_with(kPrefix); }

std::string ToString(const VariantName& name) {
  return std::string(kPrefix) + ToString(std::span(name.ranks)) +
         (name.offsets ? "@" + ToString(*name.offsets) : "") + "." + name.fqn;
}

Result<VariantName> ParseVariantName(std::string_view name) {
  auto parsed = Parse(name);
  if (!parsed) {
    return DataLoss("\"" + std::string(name) + "\" names no ranks");
  }
  return std::move(*parsed);
}

Status SeparateVariants(Metadata* metadata) {
  for (TensorMetadata& entry : TakeVariants(&metadata->tensors)) {
    VARVE_ASSIGN_OR_RETURN(VariantName parsed, ParseVariantName(entry.fqn));
    VARVE_RETURN_IF_ERROR(CheckRanks(entry.fqn, parsed, metadata->world_size));
    VARVE_ASSIGN_OR_RETURN(Box box, BoxOf(entry, parsed, metadata->FindTensor(parsed.fqn)));
    if (ToString(NameOf(parsed.fqn, parsed.ranks, box, *metadata->FindTensor(parsed.fqn))) !=
        entry.fqn) {
      return Unfounded(entry.fqn, "is not written as a variant's name is");
    }
    std::vector<Chunk>& chunks = entry.chunks.Listed();
    for (Chunk& chunk : chunks) {
      chunk.box = Moved(std::move(chunk.box), box.offsets, true);
    }
    metadata->tensor_variants.push_back(
        {std::move(parsed.fqn), std::move(box), std::move(parsed.ranks), std::move(chunks)});
  }
  for (const ObjectMetadata& entry : TakeVariants(&metadata->objects)) {
    VARVE_ASSIGN_OR_RETURN(VariantName parsed, ParseVariantName(entry.fqn));
    VARVE_RETURN_IF_ERROR(CheckRanks(entry.fqn, parsed, metadata->world_size));
    if (parsed.offsets || metadata->FindObject(parsed.fqn) == nullptr ||
        ToString(parsed) != entry.fqn) {
      return Unfounded(entry.fqn, "has no value beside it");
    }
    metadata->object_variants.push_back(
        {std::move(parsed.fqn), std::move(parsed.ranks), entry.extent});
  }
  std::sort(metadata->tensor_variants.begin(), metadata->tensor_variants.end(),
            [](const TensorVariant& a, const TensorVariant& b) {
              return std::tie(a.fqn, a.box.offsets, a.box.sizes, a.ranks[0].first) <
                     std::tie(b.fqn, b.box.offsets, b.box.sizes, b.ranks[0].first);
            });
  std::sort(metadata->object_variants.begin(), metadata->object_variants.end(),
            [](const ObjectVariant& a, const ObjectVariant& b) {
              return std::tie(a.fqn, a.ranks[0].first) < std::tie(b.fqn, b.ranks[0].first);
            });
  return CheckBoxes(metadata->tensor_variants);
}

Metadata WithVariantsAsEntries(const Metadata& metadata) {
  Metadata all = metadata;
  for (TensorVariant& variant : std::exchange(all.tensor_variants, {})) {
    const TensorMetadata& of = *metadata.FindTensor(variant.fqn);
    const VariantName name = NameOf(variant.fqn, std::move(variant.ranks), variant.box, of);
    for (Chunk& chunk : variant.chunks) {
      chunk.box = Moved(std::move(chunk.box), variant.box.offsets, false);
    }
    all.tensors.push_back({ToString(name), of.dtype, variant.box.sizes, std::move(variant.chunks)});
  }
  for (ObjectVariant& variant : std::exchange(all.object_variants, {})) {
    const VariantName name{variant.fqn, std::move(variant.ranks), std::nullopt};
    all.objects.push_back({ToString(name), variant.extent});
  }
  SortByName(&all.tensors);
  SortByName(&all.objects);
  return all;
}

Metadata ValuesOfRank(const Metadata& metadata, std::uint32_t rank) {
  Metadata own = metadata;
  for (const TensorVariant& variant : metadata.tensor_variants) {
    if (!HasRank(variant.ranks, rank)) {
      continue;
    }
    const TensorMetadata* const found = own.FindTensor(variant.fqn);
    if (found == nullptr) {
      continue;  // SeparateVariants refuses such metadata.
    }
    const auto at = found - own.tensors.data();
    std::vector<Chunk>& chunks = own.tensors[static_cast<std::size_t>(at)].chunks.Listed();
    std::erase_if(chunks, [&](const Chunk& chunk) { return Contains(variant.box, chunk.box); });
    chunks.insert(chunks.end(), variant.chunks.begin(), variant.chunks.end());
    SortByOffsets(&chunks);
  }
  for (const ObjectVariant& variant : metadata.object_variants) {
    if (HasRank(variant.ranks, rank)) {
      const auto at = own.FindObject(variant.fqn) - own.objects.data();
      own.objects[static_cast<std::size_t>(at)].extent = variant.extent;
    }
  }
  return own;
}

}  // namespace varve
