// Several safetensors files as one checkpoint: the parts of each tensor are collected from all
// headers and laid beside each other.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "base/checked.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/hf_checksums.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

struct OpenedFile {
  const NamedFile* file = nullptr;
  SafetensorsHeader header;
  bool is_shard = false;  ///< Says of each tensor which part it holds.
};

/// The part of a tensor that one file holds.
struct Part {
  const SafetensorsHeader::Tensor* tensor = nullptr;
  std::uint32_t file = 0;
};

Result<OpenedFile> OpenFile(const NamedFile& file) {
  OpenedFile opened;
  opened.file = &file;
  VARVE_ASSIGN_OR_RETURN(opened.header, ReadSafetensorsHeader(file));
  std::uint64_t end = 0;
  for (const SafetensorsHeader::Tensor& tensor : opened.header.tensors) {
    end = std::max(end, tensor.end);
  }
  if (!opened.header.tensors.empty() && end != file.size) {
    // The safetensors package refuses such a file, too.
    return DataLoss(file.name + ": its tensors end at byte " + std::to_string(end) +
                    ", and the file has " + std::to_string(file.size) +
                    ": bytes were inserted or appended; copy it from its source again");
  }
  opened.is_shard = std::any_of(
      opened.header.metadata.begin(), opened.header.metadata.end(), [](const auto& member) {
        return member.first == "DCP_SHARDING_INFO" && !member.second.empty();
      });
  return opened;
}

Status Overlap(const std::vector<OpenedFile>& files, const Chunk& a, const Chunk& b) {
  return DataLoss("what " + files[a.extent.file].file->name + " holds, " + ToString(a.box) +
                  ", overlaps what " + files[b.extent.file].file->name + " holds, " +
                  ToString(b.box));
}

/// Drops all but one of several equal parts. Ranks that hold the same part may each have stored it.
/// Files that do not call themselves shards are no ranks of one save: none of them is known to be
/// the right one.
Status DropReplicas(const std::vector<OpenedFile>& files, std::vector<Chunk>* chunks) {
  std::vector<Chunk> kept;
  kept.reserve(chunks->size());
  for (Chunk& chunk : *chunks) {
    if (kept.empty() || kept.back().box != chunk.box) {
      kept.push_back(std::move(chunk));
      continue;
    }
    const std::uint32_t first = kept.back().extent.file;
    const std::uint32_t second = chunk.extent.file;
    if (first == second || !files[first].is_shard || !files[second].is_shard) {
      return Overlap(files, kept.back(), chunk);
    }
  }
  *chunks = std::move(kept);
  return Status::Ok();
}

Status CheckDisjoint(const std::vector<OpenedFile>& files, const std::vector<Chunk>& chunks) {
  VARVE_ASSIGN_OR_RETURN(const auto overlap, FindOverlap(BoxesOf(chunks)));
  return overlap ? Overlap(files, chunks[overlap->first], chunks[overlap->second]) : Status::Ok();
}

std::string Describe(const std::vector<OpenedFile>& files, const Part& part) {
  return files[part.file].file->name + " holds " + std::string(DTypeName(part.tensor->dtype)) +
         ToString(part.tensor->shape);
}

/// Adds a part to a tensor, whose shape grows to hold it. `first` is the part it was made of.
Status AddPart(const std::vector<OpenedFile>& files, const Part& first, const Part& part,
               TensorMetadata* tensor) {
  const SafetensorsHeader::Tensor& stored = *part.tensor;
  if (stored.dtype != tensor->dtype || stored.shape.size() != tensor->shape.size()) {
    return DataLoss(Describe(files, first) + ", but " + Describe(files, part));
  }
  Chunk chunk;
  chunk.box.sizes = stored.shape;
  chunk.box.offsets = stored.offsets.empty() ? Dims(stored.shape.size(), 0) : stored.offsets;
  for (std::size_t d = 0; d < stored.shape.size(); ++d) {
    const auto end = CheckedAdd(chunk.box.offsets[d], stored.shape[d]);
    if (!end) {
      return DataLoss("the part in " + files[part.file].file->name + " ends beyond 2^64");
    }
    tensor->shape[d] = std::max(tensor->shape[d], *end);
  }
  chunk.extent = {part.file, stored.begin, stored.end};
  tensor->chunks.Listed().push_back(std::move(chunk));
  return Status::Ok();
}

/// Joins the parts of one tensor, at least one.
Status JoinParts(const std::vector<OpenedFile>& files, std::span<const Part> parts,
                 TensorMetadata* tensor) {
  const Part& first = parts.front();
  tensor->fqn = first.tensor->fqn;
  tensor->dtype = first.tensor->dtype;
  tensor->shape.assign(first.tensor->shape.size(), 0);
  for (const Part& part : parts) {
    VARVE_RETURN_IF_ERROR(AddPart(files, first, part, tensor));
  }
  for (const Chunk& chunk : tensor->chunks) {
    const Status status = CheckBox(tensor->shape, chunk.box, ItemSize(tensor->dtype));
    if (!status.ok()) {
      return DataLoss(status.message());
    }
  }
  std::vector<Chunk>& chunks = tensor->chunks.Listed();
  std::sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) {
    return a.box.offsets != b.box.offsets ? a.box.offsets < b.box.offsets
           : a.box.sizes != b.box.sizes   ? a.box.sizes < b.box.sizes
                                          : a.extent.file < b.extent.file;
  });
  VARVE_RETURN_IF_ERROR(DropReplicas(files, &chunks));
  return CheckDisjoint(files, chunks);
}

/// Makes one checkpoint of the parts. `files` are sorted by name.
Result<Decoded> Assemble(const std::vector<OpenedFile>& files, std::vector<Part> parts) {
  if (files.empty()) {
    return DataLoss("no safetensors file");
  }
  Decoded decoded;
  Metadata& metadata = decoded.metadata;
  metadata.format = Format::kSafetensors;
  metadata.world_size = static_cast<std::uint32_t>(files.size());
  for (const OpenedFile& opened : files) {
    DataFile file;
    file.name = opened.file->name;
    file.rank = static_cast<std::uint32_t>(metadata.files.size());
    file.size = opened.file->size;
    metadata.files.push_back(std::move(file));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.tensor->fqn < b.tensor->fqn; });
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t end = begin + 1;
    while (end < parts.size() && parts[end].tensor->fqn == parts[begin].tensor->fqn) {
      ++end;
    }
    TensorMetadata tensor;
    const Status status = JoinParts(files, std::span(parts).subspan(begin, end - begin), &tensor);
    VARVE_RETURN_IF_ERROR(status.Annotate("tensor \"" + parts[begin].tensor->fqn + "\""));
    metadata.tensors.push_back(std::move(tensor));
    begin = end;
  }
  return decoded;
}

Result<std::vector<const NamedFile*>> ByName(const std::vector<NamedFile>& files) {
  std::vector<const NamedFile*> order;
  order.reserve(files.size());
  for (const NamedFile& file : files) {
    order.push_back(&file);
  }
  std::sort(order.begin(), order.end(),
            [](const NamedFile* a, const NamedFile* b) { return a->name < b->name; });
  const auto twice =
      std::adjacent_find(order.begin(), order.end(),
                         [](const NamedFile* a, const NamedFile* b) { return a->name == b->name; });
  if (twice != order.end()) {
    return InvalidArgument("file " + (*twice)->name + " is given twice");
  }
  return order;
}

/// Checks that the index names each tensor of the files, in its file. Errors: DataLoss.
Status CheckAllNamed(const HfIndex& index, const std::vector<std::string>& names,
                     const std::vector<OpenedFile>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorsHeader::Tensor& tensor : files[i].header.tensors) {
      if (!std::binary_search(index.weight_map.begin(), index.weight_map.end(),
                              std::pair(tensor.fqn, names[i]))) {
        const Status unnamed = DataLoss(
            names[i] + " holds it, and the index does not say so. The index was damaged, " +
            "or another program has written it anew; in that case remove " +
            std::string(kHfChecksumsName));
        return unnamed.Annotate("tensor \"" + tensor.fqn + "\"");
      }
    }
  }
  return Status::Ok();
}

const SafetensorsHeader::Tensor* FindTensor(const SafetensorsHeader& header, std::string_view fqn) {
  const auto at = std::lower_bound(header.tensors.begin(), header.tensors.end(), fqn,
                                   [](const SafetensorsHeader::Tensor& tensor,
                                      std::string_view name) { return tensor.fqn < name; });
  return at != header.tensors.end() && at->fqn == fqn ? &*at : nullptr;
}

}  // namespace

Result<Decoded> DecodeSafetensors(const std::vector<NamedFile>& files) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<const NamedFile*> order, ByName(files));
  std::vector<OpenedFile> opened;
  opened.reserve(order.size());
  for (const NamedFile* file : order) {
    VARVE_ASSIGN_OR_RETURN(OpenedFile one, OpenFile(*file));
    opened.push_back(std::move(one));
  }
  std::vector<Part> parts;
  for (std::size_t i = 0; i < opened.size(); ++i) {
    for (const SafetensorsHeader::Tensor& tensor : opened[i].header.tensors) {
      parts.push_back({&tensor, static_cast<std::uint32_t>(i)});
    }
  }
  return Assemble(opened, std::move(parts));
}

Result<Decoded> DecodeHfFolder(const HfIndex& index, const std::vector<NamedFile>& files,
                               NotInIndex others) {
  VARVE_ASSIGN_OR_RETURN(const std::vector<const NamedFile*> given, ByName(files));
  const std::vector<std::string> names = index.FileNames();
  std::vector<OpenedFile> opened;
  opened.reserve(names.size());
  for (const std::string& name : names) {
    const auto at = std::lower_bound(
        given.begin(), given.end(), name,
        [](const NamedFile* file, const std::string& want) { return file->name < want; });
    if (at == given.end() || (*at)->name != name) {
      return DataLoss("the index names the file " + name + ", which is not there");
    }
    VARVE_ASSIGN_OR_RETURN(OpenedFile one, OpenFile(**at));
    opened.push_back(std::move(one));
  }
  std::vector<Part> parts;
  parts.reserve(index.weight_map.size());
  for (const auto& [fqn, name] : index.weight_map) {
    const auto file = static_cast<std::uint32_t>(
        std::lower_bound(names.begin(), names.end(), name) - names.begin());
    const SafetensorsHeader::Tensor* tensor = FindTensor(opened[file].header, fqn);
    if (tensor == nullptr) {
      const Status missing = DataLoss(name + " does not hold it, though the index says so");
      return missing.Annotate("tensor \"" + fqn + "\"");
    }
    parts.push_back({tensor, file});
  }
  if (others == NotInIndex::kRefused) {
    VARVE_RETURN_IF_ERROR(CheckAllNamed(index, names, opened));
  }
  return Assemble(opened, std::move(parts));
}

}  // namespace varve
