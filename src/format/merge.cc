#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "base/sort_by_name.h"
#include "format/manifest.h"
#include "format/variants.h"
#include "tensor/box.h"

namespace varve {
namespace {

Status CheckAgreement(const DataFileHeader& first, const DataFileHeader& other) {
  if (other.identity.save_id != first.identity.save_id) {
    return DataLoss("files of different saves: " + ToString(first.identity.save_id) + " and " +
                    ToString(other.identity.save_id));
  }
  if (other.identity.world_size != first.identity.world_size ||
      other.identity.block_bytes != first.identity.block_bytes ||
      other.identity.coordinated != first.identity.coordinated) {
    return DataLoss("rank " + std::to_string(other.identity.rank) + " and rank " +
                    std::to_string(first.identity.rank) +
                    " disagree about the save they belong to");
  }
  return Status::Ok();
}

/// A value that ranks hold in place of the lowest rank's.
struct OtherChunk {
  Chunk chunk;
  std::vector<std::uint32_t> ranks;  ///< Ascending.
};
struct OtherObject {
  Extent extent;
  Hash128 content;
  std::vector<std::uint32_t> ranks;
};

/// A chunk of a file under one of its names.
struct NamedChunk {
  const std::string* fqn = nullptr;
  std::uint32_t file = 0;
  const StoredChunk* stored = nullptr;
};

/// What the headers say, by name.
struct MergedFiles {
  std::map<std::string, ObjectMetadata> objects;
  std::map<std::string, Hash128> contents;  ///< Of `objects`, from rank-local files.
  /// Of rank-local files, each in the order of the ranks that hold them.
  std::map<std::string, std::vector<OtherChunk>> other_chunks;
  std::map<std::string, std::vector<OtherObject>> other_objects;
};

/// Adds `rank` to the value that has `content`, or another value with it.
template <class Other, class IsSame>
void AddOther(std::uint32_t rank, Other other, IsSame is_same, std::vector<Other>* others) {
  const auto known = std::find_if(others->begin(), others->end(), is_same);
  if (known != others->end()) {
    known->ranks.push_back(rank);
    return;
  }
  other.ranks.push_back(rank);
  others->push_back(std::move(other));
}

/// Adds a file's chunk to its tensor, which has the lower ranks' already. Rank-local saves store a
/// replicated tensor on every rank that holds it; the copy of the lowest rank is the one the
/// metadata names, and copies with other content are variants.
Status AddChunk(const CheckedHeader& file, const NamedChunk& named, MergedFiles* merged,
                TensorMetadata* into) {
  TensorMetadata& tensor = *into;
  const StoredChunk& stored = *named.stored;
  if (tensor.dtype != stored.dtype() || tensor.shape != stored.shape()) {
    return DataLoss(
        "tensor \"" + tensor.fqn + "\": rank " + std::to_string(file.header.identity.rank) +
        " has " + std::string(DTypeName(stored.dtype())) + ToString(stored.shape()) +
        ", another rank " + std::string(DTypeName(tensor.dtype)) + ToString(tensor.shape));
  }
  Chunk chunk{
      stored.box,
      {named.file, file.header_bytes + stored.bytes.begin, file.header_bytes + stored.bytes.end},
      stored.content};
  const auto replica =
      file.header.identity.coordinated
          ? tensor.chunks.end()
          : std::find_if(tensor.chunks.begin(), tensor.chunks.end(),
                         [&](const Chunk& known) { return known.box == stored.box; });
  if (replica == tensor.chunks.end()) {
    if (!IsEmpty(stored.box) || Volume(stored.shape()) == 0) {
      tensor.chunks.push_back(std::move(chunk));
    }
  } else if (replica->content != stored.content && !IsEmpty(stored.box)) {
    AddOther(
        file.header.identity.rank, OtherChunk{std::move(chunk), {}},
        [&](const OtherChunk& other) {
          return other.chunk.content == stored.content && other.chunk.box == stored.box;
        },
        &merged->other_chunks[tensor.fqn]);
  }
  return Status::Ok();
}

/// Checks what a header of a rank that saved apart cannot have: a box of a tensor twice, and names
/// of what several ranks hold. Either would count as another rank's value.
Status CheckApart(const DataFileHeader& header) {
  std::set<std::tuple<std::string_view, const Dims&, const Dims&>> boxes;
  for (const StoredChunk& stored : header.chunks) {
    if (!IsEmpty(stored.box) &&
        !boxes.emplace(stored.fqn(), stored.box.offsets, stored.box.sizes).second) {
      return DataLoss("tensor \"" + stored.fqn() + "\": rank " +
                      std::to_string(header.identity.rank) + " has " + ToString(stored.box) +
                      " twice");
    }
  }
  const auto check = [&](std::string_view fqn) -> Status {
    return IsVariantName(fqn) ? DataLoss("rank " + std::to_string(header.identity.rank) +
                                         ", which saved apart, has \"" + std::string(fqn) +
                                         "\", a name of what several ranks hold")
                              : Status::Ok();
  };
  for (const StoredChunk& stored : header.chunks) {
    VARVE_RETURN_IF_ERROR(check(stored.fqn()));
  }
  for (const TensorAlias& alias : header.aliases) {
    VARVE_RETURN_IF_ERROR(check(alias.fqn));
  }
  for (const StoredObject& stored : header.objects) {
    VARVE_RETURN_IF_ERROR(check(stored.fqn));
  }
  return Status::Ok();
}

/// Adds one file's chunks, those of aliased tensors under each name.
void AddChunks(const DataFileHeader& header, std::uint32_t file, std::vector<NamedChunk>* named) {
  std::multimap<std::string_view, const std::string*> aliases;
  for (const TensorAlias& alias : header.aliases) {
    aliases.emplace(alias.of, &alias.fqn);
  }
  for (const StoredChunk& stored : header.chunks) {
    named->push_back({&stored.fqn(), file, &stored});
    const auto [begin, end] = aliases.equal_range(stored.fqn());
    for (auto at = begin; at != end; ++at) {
      named->push_back({at->second, file, &stored});
    }
  }
}

/// Returns all files' chunks by their names, those of one name by their ranks.
std::vector<NamedChunk> ChunksByName(const std::vector<CheckedHeader>& headers) {
  std::size_t count = 0;
  for (const CheckedHeader& file : headers) {
    count += file.header.chunks.size();
  }
  std::vector<NamedChunk> named;
  named.reserve(count);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    AddChunks(headers[i].header, static_cast<std::uint32_t>(i), &named);
  }
  SortByName(&named, [](const NamedChunk& chunk) { return chunk.fqn; });
  return named;
}

/// Adds the tensors that the files' chunks make.
Status MergeTensors(const std::vector<CheckedHeader>& headers, MergedFiles* merged,
                    std::vector<TensorMetadata>* tensors) {
  const std::vector<NamedChunk> named = ChunksByName(headers);
  for (auto begin = named.begin(); begin != named.end();) {
    const auto end = std::find_if(begin, named.end(), [&](const NamedChunk& one) {
      return one.fqn != begin->fqn && *one.fqn != *begin->fqn;
    });
    TensorMetadata tensor{*begin->fqn, begin->stored->dtype(), begin->stored->shape(), {}};
    for (; begin != end; ++begin) {
      VARVE_RETURN_IF_ERROR(AddChunk(headers[begin->file], *begin, merged, &tensor));
    }
    std::sort(tensor.chunks.begin(), tensor.chunks.end(),
              [](const Chunk& a, const Chunk& b) { return a.box.offsets < b.box.offsets; });
    VARVE_RETURN_IF_ERROR(CheckTiling(tensor));
    if (merged->objects.contains(tensor.fqn)) {
      return DataLoss("\"" + tensor.fqn + "\" is stored both as a tensor and as an object");
    }
    tensors->push_back(std::move(tensor));
  }
  return Status::Ok();
}

Status AddObjects(const CheckedHeader& file, std::uint32_t file_index, MergedFiles* merged) {
  for (const StoredObject& stored : file.header.objects) {
    const Extent extent{file_index, file.header_bytes + stored.bytes.begin,
                        file.header_bytes + stored.bytes.end};
    const bool is_new =
        merged->objects.try_emplace(stored.fqn, ObjectMetadata{stored.fqn, extent}).second;
    if (!is_new && file.header.identity.coordinated) {
      return DataLoss("object \"" + stored.fqn + "\" is stored by two ranks");
    }
    if (file.header.identity.coordinated) {
      continue;
    }
    const Hash128 first = merged->contents.try_emplace(stored.fqn, stored.content).first->second;
    if (is_new || first == stored.content || first == Hash128() || stored.content == Hash128()) {
      continue;  // Files of before do not say what their values are.
    }
    AddOther(
        file.header.identity.rank, OtherObject{extent, stored.content, {}},
        [&](const OtherObject& other) { return other.content == stored.content; },
        &merged->other_objects[stored.fqn]);
  }
  return Status::Ok();
}

/// Adds what ranks that saved apart hold in place of the lowest rank's values.
void AddVariants(MergedFiles* merged, Metadata* metadata) {
  for (auto& [fqn, others] : merged->other_chunks) {
    for (OtherChunk& other : others) {
      const Box box = other.chunk.box;
      metadata->tensor_variants.push_back(
          {fqn, box, RangesOf(other.ranks), {std::move(other.chunk)}});
    }
  }
  for (auto& [fqn, others] : merged->other_objects) {
    for (const OtherObject& other : others) {
      metadata->object_variants.push_back({fqn, RangesOf(other.ranks), other.extent});
    }
  }
}

}  // namespace

Status CheckTiling(const TensorMetadata& tensor) {
  if (tensor.chunks.size() == 1 && tensor.chunks[0].box == WholeBox(tensor.shape)) {
    return Status::Ok();
  }
  std::vector<Box> boxes;
  boxes.reserve(tensor.chunks.size());
  std::uint64_t covered = 0;
  for (const Chunk& chunk : tensor.chunks) {
    boxes.push_back(chunk.box);
    covered += Volume(chunk.box.sizes);
  }
  if (AnyOverlap(boxes)) {
    return DataLoss("tensor \"" + tensor.fqn + "\": stored chunks overlap");
  }
  if (covered != Volume(tensor.shape)) {
    const auto holes = SubtractAll(WholeBox(tensor.shape), boxes);
    return DataLoss("tensor \"" + tensor.fqn + "\" of shape " + ToString(tensor.shape) +
                    ": no rank stored " + ToString(holes.front()));
  }
  return Status::Ok();
}

Result<Metadata> MergeHeaders(std::vector<CheckedHeader> headers) {
  if (headers.empty()) {
    return DataLoss("no data files");
  }
  std::sort(headers.begin(), headers.end(), [](const CheckedHeader& a, const CheckedHeader& b) {
    return a.header.identity.rank < b.header.identity.rank;
  });
  Metadata metadata;
  metadata.save_id = headers[0].header.identity.save_id;
  metadata.world_size = headers[0].header.identity.world_size;
  metadata.block_bytes = headers[0].header.identity.block_bytes;
  MergedFiles merged;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const CheckedHeader& file = headers[i];
    VARVE_RETURN_IF_ERROR(CheckAgreement(headers[0].header, file.header));
    if (i > 0 && headers[i - 1].header.identity.rank == file.header.identity.rank) {
      return DataLoss("two data files of rank " + std::to_string(file.header.identity.rank));
    }
    const auto index = static_cast<std::uint32_t>(i);
    metadata.files.push_back({DataFileName(file.header), file.header.identity.rank,
                              file.header_bytes + file.header.data_bytes, file.header_bytes,
                              file.header_crc32c, file.header.block_crc32c});
    if (!file.header.identity.coordinated) {
      VARVE_RETURN_IF_ERROR(CheckApart(file.header));
    }
    VARVE_RETURN_IF_ERROR(AddObjects(file, index, &merged));
    if (file.header.structure) {
      metadata.structures.push_back({index, file.header_bytes + file.header.structure->begin,
                                     file.header_bytes + file.header.structure->end});
    }
  }
  VARVE_RETURN_IF_ERROR(MergeTensors(headers, &merged, &metadata.tensors));
  for (auto& [fqn, object] : merged.objects) {
    metadata.objects.push_back(std::move(object));
  }
  AddVariants(&merged, &metadata);
  VARVE_RETURN_IF_ERROR(SeparateVariants(&metadata));
  return metadata;
}

}  // namespace varve
