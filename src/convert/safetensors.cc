// To safetensors: one file, or a folder as Hugging Face's tools expect it.

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "catalogue/family.h"
#include "catalogue/formats/hf.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "convert/writers.h"
#include "format/data_file.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/encode.h"
#include "interop/safetensors/hf_checksums.h"
#include "publish/claim.h"
#include "publish/commit.h"
#include "publish/publisher.h"
#include "publish/save_id.h"

namespace varve {
namespace {

struct PlannedFile {
  std::string name;
  std::vector<const SelectedTensor*> tensors;  // In file order.
  Bytes header;
};

SafetensorsEntry EntryOf(const SelectedTensor& tensor) {
  return {tensor.fqn, tensor.item.dtype, tensor.item.tensor->shape};
}

/// Returns the tensors that safetensors can name, and adds to `report` the rest, which it cannot
/// hold.
std::vector<const SelectedTensor*> Nameable(const Selection& selection, ConvertReport* report) {
  std::vector<const SelectedTensor*> tensors;
  for (const SelectedTensor& tensor : selection.tensors) {
    if (CanBeSafetensors(tensor.item.dtype, tensor.item.tensor->shape)) {
      tensors.push_back(&tensor);
    } else {
      report->skipped.push_back(tensor.fqn);
    }
  }
  report->objects_left_out = selection.objects.size();
  return tensors;
}

void PlanFile(PlannedFile* file) {
  std::sort(file->tensors.begin(), file->tensors.end(),
            [](const SelectedTensor* a, const SelectedTensor* b) {
              return SafetensorsBefore(EntryOf(*a), EntryOf(*b));
            });
  std::vector<SafetensorsEntry> entries;
  entries.reserve(file->tensors.size());
  for (const SelectedTensor* tensor : file->tensors) {
    entries.push_back(EntryOf(*tensor));
  }
  file->header = EncodeSafetensorsHeader(entries);
}

/// Files of at most `shard_size` bytes of tensors, filled in the order of names.
std::vector<PlannedFile> Shard(const std::vector<const SelectedTensor*>& tensors,
                               std::uint64_t shard_size) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string_view, const SelectedTensor*> by_name;
  entries.reserve(tensors.size());
  for (const SelectedTensor* tensor : tensors) {
    entries.push_back(EntryOf(*tensor));
    by_name[tensor->fqn] = tensor;
  }
  std::vector<PlannedFile> files;
  for (const HfFile& file : DivideIntoHfFiles(entries, shard_size)) {
    PlannedFile& planned = files.emplace_back();
    planned.name = file.name;
    planned.header = EncodeSafetensorsHeader(file.entries);
    for (const SafetensorsEntry& entry : file.entries) {
      planned.tensors.push_back(by_name.at(entry.fqn));
    }
  }
  return files;
}

std::vector<FileSegment> SegmentsOf(const PlannedFile& file, std::size_t first_item,
                                    SelectedStream* stream) {
  std::vector<FileSegment> segments;
  segments.push_back({.bytes = file.header.size(), .literal = AsByteSpan(file.header)});
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    segments.push_back(
        {.bytes = file.tensors[i]->item.bytes(), .produce = stream->Bytes(first_item + i)});
  }
  return segments;
}

/// Returns the files that the folder will have under names which a user's files may have too. Both
/// arguments must outlive what is returned.
std::vector<BroughtFile> BroughtBy(const std::vector<PlannedFile>& files,
                                   const std::vector<SideFile>& others) {
  std::vector<BroughtFile> brought{{std::string(kHfIndexName)}, {std::string(kHfChecksumsName)}};
  for (const PlannedFile& file : files) {
    brought.push_back({file.name});
  }
  for (const SideFile& file : others) {
    brought.push_back({file.name, &file.content});
  }
  return brought;
}

/// Errors: FailedPrecondition where the file is one of those that make its directory a checkpoint
/// of Varve's or of PyTorch's, which its replacement would destroy.
Status CheckIsNoPart(Storage& storage, const std::string& target) {
  const std::string directory = ParentPath(target);
  const auto entries = storage.List(directory);
  const auto format = entries.ok() ? ShownFormat(storage, directory, *entries) : std::nullopt;
  const bool has_parts = format == Format::kVarve || format == Format::kDcp;
  return has_parts && OwnNames(storage, directory, *entries).Contains(BaseName(target))
             ? FailedPrecondition(target + " is part of the checkpoint " + directory +
                                  "; it is not replaced, choose another name")
             : Status::Ok();
}

}  // namespace

Result<std::uint64_t> PublishFile(Storage& storage, const std::string& name,
                                  const ConvertOptions& options,
                                  const std::vector<FileSegment>& segments) {
  VARVE_ASSIGN_OR_RETURN(const std::string target, FollowLinks(storage, name));
  if (!IsRemote(storage, target) && storage.List(target).ok()) {
    return InvalidArgument(
        target +
        " is a directory, and this format is one file: give the file's name, "
        "such as " +
        JoinPath(target, options.to == ConvertTarget::kTorch ? "model.pt" : "model.safetensors"));
  }
  const Status there = storage.OpenForRead(target).status();
  if (there.code() == StatusCode::kInvalidArgument) {  // A rename would replace the device.
    return there;
  }
  if (there.ok() && !options.overwrite) {
    return AlreadyExists(target + " exists; pass overwrite to replace it");
  }
  VARVE_RETURN_IF_ERROR(there.ok() ? CheckIsNoPart(storage, target) : Status::Ok());
  const auto lock = storage.Lock(LockPath(target));  // Two must not share the part file.
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition("another conversion to " + target + " is under way");
  }
  std::uint64_t size = 0;
  VARVE_RETURN_IF_ERROR(
      PublisherOf(storage, target)
          ->PublishFile(target, {.replaces = options.overwrite},
                        [&](const std::string& file) -> Status {
                          VARVE_ASSIGN_OR_RETURN(
                              size, WriteSegmentsFile(storage, file, segments, options.stop));
                          return Status::Ok();
                        }));
  return size;
}

Result<ConvertReport> ConvertToSafetensors(CheckpointReader& reader, const Selection& selection,
                                           const std::string& target, const ConvertOptions& options,
                                           Storage& storage) {
  ConvertReport report;
  PlannedFile file{target, Nameable(selection, &report), {}};
  if (file.tensors.empty()) {
    return NotFound("no tensor is selected that safetensors can hold");
  }
  PlanFile(&file);
  VARVE_RETURN_IF_ERROR(CheckSafetensorsHeader(BaseName(target), file.header));
  SelectedStream stream(reader, file.tensors, options, selection.tensor_bytes());
  VARVE_ASSIGN_OR_RETURN(report.bytes,
                         PublishFile(storage, target, options, SegmentsOf(file, 0, &stream)));
  report.tensor_count = file.tensors.size();
  report.files_left_out = reader.metadata().side_files.size();
  return report;
}

Result<ConvertReport> ConvertToHf(CheckpointReader& reader, const Selection& selection,
                                  const std::string& target, const ConvertOptions& options,
                                  Storage& storage) {
  ConvertReport report;
  const auto tensors = Nameable(selection, &report);
  if (tensors.empty()) {
    return NotFound("no tensor is selected that safetensors can hold" +
                    selection.model.WhyNothing());
  }
  const std::vector<PlannedFile> files = Shard(tensors, options.shard_size);
  for (const PlannedFile& file : files) {
    VARVE_RETURN_IF_ERROR(CheckSafetensorsHeader(file.name, file.header));
  }
  VARVE_ASSIGN_OR_RETURN(std::vector<SideFile> others, ReadSideFiles(reader));
  if (!options.hf_config.empty()) {
    VARVE_ASSIGN_OR_RETURN(const auto config, ReadHfConfig(options.hf_config, storage));
    for (const SideFile& file : config) {
      std::erase_if(others, [&](const SideFile& other) { return other.name == file.name; });
      others.push_back(file);
    }
  }
  for (SideFile& file : others) {
    if (options.dtype && file.name == "config.json") {
      file.content = WithDType(file.content, *options.dtype);
    }
  }
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  VARVE_ASSIGN_OR_RETURN(
      const auto commit,
      Commit::Begin(
          storage, target,
          {.id = id,
           .overwrite = options.overwrite ? Overwrite::kAlways : Overwrite::kNever,
           .stop = options.stop,
           .brought = BroughtBy(files, others),
           .index = {.name = std::string(kHfIndexName), .format = Format::kSafetensors}}));
  const std::string below = commit->below();
  HfChecksums checksums{.block_bytes = kDefaultBlockBytes,
                        .files = {},
                        .side_files = SideFilesOfFolder(others, below)};
  report.files = NamesOf(others);
  commit->AddSideFiles(std::move(others));
  std::vector<const SelectedTensor*> order;
  for (const PlannedFile& file : files) {
    order.insert(order.end(), file.tensors.begin(), file.tensors.end());
  }
  SelectedStream stream(reader, order, options, selection.tensor_bytes());
  std::vector<DataFile> written;
  HfIndex index;
  std::size_t first_item = 0;
  std::uint64_t tensor_bytes = 0;
  for (const PlannedFile& file : files) {
    HfChecksums::File& sums = checksums.files.emplace_back();
    VARVE_ASSIGN_OR_RETURN(
        const std::uint64_t size,
        WriteSegmentsFile(storage, JoinPath(commit->staging(), file.name),
                          SegmentsOf(file, first_item, &stream), options.stop, &sums.block_crc32c));
    sums.name = below + file.name;
    sums.size = size;
    sums.header_bytes = file.header.size();
    sums.header_crc32c = Crc32c(AsByteSpan(file.header));
    written.push_back({.name = file.name, .size = size});
    first_item += file.tensors.size();
    report.bytes += size;
    for (const SelectedTensor* tensor : file.tensors) {
      index.weight_map.emplace_back(tensor->fqn, below + file.name);
      tensor_bytes += tensor->item.bytes();
    }
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  VARVE_RETURN_IF_ERROR(
      commit->Publish(written, {{std::string(kHfChecksumsName), EncodeHfChecksums(checksums)},
                                {std::string(kHfIndexName), EncodeHfIndex(index, tensor_bytes)}}));
  report.tensor_count = tensors.size();
  return report;
}

}  // namespace varve
