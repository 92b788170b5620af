// Joins the indexes of ranks that saved without coordination to each other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "format/structure.h"
#include "interop/dcp/metadata.h"
#include "interop/pickle/text.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

std::string Shown(const TensorMetadata& tensor) {
  return std::string(DTypeName(tensor.dtype)) + ToString(tensor.shape);
}

bool IsEmptyDict(const Value& value) {
  return value.kind == ValueKind::kDict && value.items.empty();
}

/// Fills holes of `into` from `from`. DCP stores nothing for an empty dict, so a list position that
/// one rank has no entry for looks like one. Where the other rank has another value, that value
/// counts. The structures come from DcpStructure, which bounds their depth.
void FillHoles(const Value& from, Value* into) {  // NOLINT(misc-no-recursion)
  if (from.kind != into->kind) {
    return;
  }
  if (from.kind == ValueKind::kList) {
    for (std::size_t i = 0; i < std::min(from.items.size(), into->items.size()); ++i) {
      if (IsEmptyDict(into->items[i])) {
        into->items[i] = from.items[i];
      } else {
        FillHoles(from.items[i], &into->items[i]);
      }
    }
  }
  if (from.kind == ValueKind::kDict) {
    std::map<std::string, std::size_t> places;
    for (std::size_t i = 0; i + 1 < into->items.size(); i += 2) {
      places.emplace(EncodeValue(into->items[i]), i + 1);
    }
    for (std::size_t i = 0; i + 1 < from.items.size(); i += 2) {
      const auto found = places.find(EncodeValue(from.items[i]));
      if (found != places.end()) {
        FillHoles(from.items[i + 1], &into->items[found->second]);
      }
    }
  }
}

class Merger {
 public:
  explicit Merger(std::vector<Decoded> by_rank) : by_rank_(std::move(by_rank)) {}

  Result<Decoded> Run() {
    NameFiles();
    std::map<std::string_view, std::vector<Part>> tensors;
    std::map<std::string_view, const Extent*> objects;
    for (std::uint32_t rank = 0; rank < by_rank_.size(); ++rank) {
      Metadata& metadata = by_rank_[rank].metadata;
      for (TensorMetadata& tensor : metadata.tensors) {
        for (Chunk& chunk : tensor.chunks.Listed()) {
          chunk.extent.file = file_of_[rank][chunk.extent.file];
        }
        tensors[tensor.fqn].push_back({rank, &tensor});
      }
      for (ObjectMetadata& object : metadata.objects) {
        object.extent.file = file_of_[rank][object.extent.file];
        objects.emplace(object.fqn, &object.extent);  // The lowest rank's stays.
      }
    }
    for (const auto& [fqn, parts] : tensors) {
      if (objects.contains(fqn)) {
        return DataLoss(ShownText(fqn) + " is a tensor on rank " + std::to_string(parts[0].rank) +
                        " and a value on another rank");
      }
      VARVE_RETURN_IF_ERROR(AddTensor(parts).Annotate("tensor " + ShownText(fqn)));
    }
    for (const auto& [fqn, extent] : objects) {
      out_.metadata.objects.push_back({std::string(fqn), *extent});
    }
    VARVE_RETURN_IF_ERROR(MergeBlocks());
    VARVE_RETURN_IF_ERROR(MergeAllStructures());
    return std::move(out_);
  }

 private:
  struct Part {
    std::uint32_t rank = 0;
    TensorMetadata* tensor = nullptr;
  };

  Status MergeBlocks() {
    std::map<std::string, Dims> shapes;
    for (Decoded& decoded : by_rank_) {
      for (auto& [fqn, shape] : decoded.in_blocks) {
        const auto [known, is_new] = shapes.try_emplace(fqn, shape);
        if (!is_new && known->second != shape) {
          return DataLoss("tensor " + ShownText(fqn) + ": ranks say that it is " +
                          ToString(known->second) + " and " + ToString(shape));
        }
      }
    }
    out_.in_blocks.assign(shapes.begin(), shapes.end());
    return Status::Ok();
  }

  void NameFiles() {
    std::map<std::string, DataFile> files;
    std::uint32_t world_size = static_cast<std::uint32_t>(by_rank_.size());
    for (const Decoded& decoded : by_rank_) {
      const Metadata& metadata = decoded.metadata;
      world_size = std::max(world_size, metadata.world_size);
      if (out_.metadata.block_bytes == 0) {
        out_.metadata.block_bytes = metadata.block_bytes;
      }
      for (const DataFile& file : metadata.files) {
        DataFile& kept = files.emplace(file.name, file).first->second;
        if (metadata.block_bytes != out_.metadata.block_bytes) {
          kept.block_crc32c.clear();  // Of blocks of another size: no use beside the others.
        }
      }
    }
    std::map<std::string_view, std::uint32_t> places;
    for (const auto& [name, file] : files) {
      places.emplace(name, static_cast<std::uint32_t>(out_.metadata.files.size()));
      out_.metadata.files.push_back(file);
    }
    for (const Decoded& decoded : by_rank_) {
      file_of_.emplace_back();
      for (const DataFile& file : decoded.metadata.files) {
        file_of_.back().push_back(places[file.name]);
      }
    }
    out_.metadata.format = Format::kDcp;
    out_.metadata.world_size = world_size;
  }

  Status AddTensor(const std::vector<Part>& parts) {
    TensorMetadata made{parts[0].tensor->fqn, parts[0].tensor->dtype, parts[0].tensor->shape, {}};
    std::size_t count = 0;
    for (const Part& part : parts) {
      if (part.tensor->dtype != made.dtype || part.tensor->shape != made.shape) {
        return DataLoss("rank " + std::to_string(parts[0].rank) + " has " +
                        Shown(*parts[0].tensor) + ", rank " + std::to_string(part.rank) + " has " +
                        Shown(*part.tensor));
      }
      count += part.tensor->chunks.size();
    }
    std::vector<Chunk>& chunks = made.chunks.Listed();
    chunks.reserve(count);
    for (const Part& part : parts) {
      std::vector<Chunk>& of_part = part.tensor->chunks.Listed();
      std::move(of_part.begin(), of_part.end(), std::back_inserter(chunks));
    }
    // Parts come by rank and the sort keeps that order, so the lowest rank's replica is the first.
    std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) {
      return a.box.offsets != b.box.offsets ? a.box.offsets < b.box.offsets
                                            : a.box.sizes > b.box.sizes;
    });
    const auto replicas =
        std::unique(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) {
          return a.box == b.box || (IsEmpty(b.box) && a.box.offsets == b.box.offsets);
        });
    chunks.erase(replicas, chunks.end());
    VARVE_ASSIGN_OR_RETURN(const auto overlap, FindOverlap(BoxesOf(chunks)));
    if (overlap) {
      return DataLoss("ranks stored chunks that overlap: " + ToString(chunks[overlap->first].box) +
                      " and " + ToString(chunks[overlap->second].box));
    }
    out_.metadata.tensors.push_back(std::move(made));
    return Status::Ok();
  }

  Status MergeAllStructures() {
    std::vector<Value> structures;
    for (Decoded& decoded : by_rank_) {
      if (!decoded.structure) {
        return Status::Ok();
      }
      structures.push_back(std::move(*decoded.structure));
    }
    // Once down and once up the ranks: then a hole is left only where no rank has anything.
    for (std::size_t r = 1; r < structures.size(); ++r) {
      FillHoles(structures[r - 1], &structures[r]);
    }
    for (std::size_t r = structures.size(); r-- > 1;) {
      FillHoles(structures[r], &structures[r - 1]);
    }
    Result<Value> merged = MergeStructures(structures);
    if (!merged.ok()) {
      return DataLoss(merged.status().message());
    }
    out_.structure = std::move(*merged);
    out_.keys_are_text = std::any_of(by_rank_.begin(), by_rank_.end(),
                                     [](const Decoded& rank) { return rank.keys_are_text; });
    return Status::Ok();
  }

  std::vector<Decoded> by_rank_;
  std::vector<std::vector<std::uint32_t>> file_of_;  // By rank, by its own number.
  Decoded out_;
};

}  // namespace

Result<Decoded> MergeRankLocalDcp(std::vector<Decoded> by_rank) {
  if (by_rank.empty()) {
    return DataLoss("no rank has an index");
  }
  return Merger(std::move(by_rank)).Run();
}

}  // namespace varve
