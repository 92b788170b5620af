// A sharded checkpoint as the whole states that it is made of.
//
//  1. Find the parts: model, optimizer, trainer. State that belongs to one rank has no place in an
//     unsharded checkpoint. hfai has no trainer's part: the caller's entries are one.
//  2. Write each part's file into a staging directory, one after the other, streaming. A file is
//     synced under a hidden name and renamed when it is whole. A crash leaves the staging
//     directory, whose id is a digest of the source's files and of the options. The next unshard of
//     the same goes on in it and writes the files that are missing; any other commit of the name,
//     and gc, remove it.
//  3. Publish the directory. `config.yaml`, OLMo's mark of a whole checkpoint, is written last. A
//     source without one gets a mark of Varve's, .varve-uploaded: without either, what OLMo has not
//     finished looks the same.
// In an object store the staging directory is the checkpoint's own: steps 2 and 3 are those of
// publish/fixed_names.cc, nothing is kept of one that died, and an overwrite removes the old first.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "convert/model_part.h"
#include "convert/writers.h"
#include "format/structure.h"
#include "interop/olmo/names.h"
#include "publish/commit.h"
#include "publish/publisher.h"
#include "publish/save_id.h"
#include "varve/checkpoint.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// Names of the trainer's state of one rank, which no unsharded checkpoint has, begin so.
constexpr std::string_view kOfARank = "train/rank";
constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{64} << 20;

/// A file of an unsharded checkpoint and the part of the state that it holds.
struct PartFile {
  std::string part;  ///< Empty: the whole state, but for `exclude`.
  std::string name;
  bool is_model = false;
  bool is_safetensors = false;
  std::vector<std::string> exclude{};  ///< Globs.
};

bool IsEmptyList(const Value& item) { return item.kind == ValueKind::kList && item.items.empty(); }

/// Returns the name of the first of the keys that the training state has; of a list of one, its
/// item. hfai stores a list of models, most often of one, and an empty one where there is no
/// optimizer.
std::optional<std::string> PartAt(const TrainingState& training,
                                  std::initializer_list<const char*> keys) {
  for (const char* const key : keys) {
    if (const Value* const item = ItemAt(*training.structure, key);
        item != nullptr && !IsEmptyList(*item)) {
      const bool one = item->kind == ValueKind::kList && item->items.size() == 1;
      return training.prefix + key + (one ? ".0" : "");
    }
  }
  return std::nullopt;
}

Result<std::vector<PartFile>> FindParts(const Value& structure, const UnshardOptions& options) {
  const TrainingState training = FindTraining(structure);
  const auto model = PartAt(training, {"model", "module", "model_state_dict", "state_dict"});
  if (!model) {
    return InvalidArgument(
        "it holds no model: no \"model\" at the top level, nor in one entry of it");
  }
  // As OLMo's own script: the trainer's state stays a file of torch.save.
  const bool safetensors = options.olmo_safetensors;
  const std::string suffix = safetensors ? ".safetensors" : ".pt";
  std::vector<PartFile> files{{*model, "model" + suffix, true, safetensors}};
  if (options.model_only) {
    return files;
  }
  if (const auto optim = PartAt(training, {"optim", "optimizer", "optimizer_state_dict"})) {
    files.push_back({*optim, "optim" + suffix, false, safetensors});
  }
  if (const auto train = PartAt(training, {"train"})) {
    files.push_back({*train, "train.pt"});
  }
  return files;
}

/// Returns the file of all that lies beside models and optimizers, of a checkpoint of hfai; nothing
/// where there is no such entry.
std::optional<PartFile> OthersOf(const CheckpointReader& reader) {
  PartFile others{"", "train.pt"};
  others.exclude = {"model.*", "optimizer.*", "model", "optimizer"};
  const auto is_other = [](const auto& entry) {
    return !entry.fqn.starts_with("model.") && !entry.fqn.starts_with("optimizer.");
  };
  const Metadata& metadata = reader.metadata();
  const bool any = std::any_of(metadata.tensors.begin(), metadata.tensors.end(), is_other) ||
                   std::any_of(metadata.objects.begin(), metadata.objects.end(), is_other);
  return metadata.format == Format::kHfai && any ? std::optional(std::move(others)) : std::nullopt;
}

/// Returns the content of the source's config.yaml; nothing where it has none.
Result<std::optional<std::string>> ReadConfig(Storage& storage, const std::string& source) {
  auto config = ReadWholeFile(storage, JoinPath(source, kOlmoMark), kMaxConfigBytes);
  if (config.ok()) {
    return std::optional(*std::move(config));
  }
  return config.status().code() == StatusCode::kNotFound
             ? Result<std::optional<std::string>>(std::optional<std::string>())
             : config.status();
}

/// Returns the file that makes the rest a checkpoint.
IndexFile MarkOf(const std::optional<std::string>& config) {
  return config ? IndexFile{std::string(kOlmoMark), *config}
                : IndexFile{std::string(kUploadMark), "Written last, when the files were whole.\n"};
}

ConvertOptions AsConvert(const UnshardOptions& options) {
  ConvertOptions convert;
  convert.to = options.to;
  convert.overwrite = options.overwrite;
  convert.memory_budget = options.memory_budget;
  convert.shard_size = options.shard_size;
  convert.progress = options.progress;
  convert.stop = options.stop;
  convert.exclude = {std::string(kOfARank) + "*"};
  return convert;
}

/// The progress of several files as one: the total is that of all.
class JoinedProgress {
 public:
  JoinedProgress(const ProgressFunction& progress, std::uint64_t total)
      : progress_(progress), total_(total) {}

  ProgressFunction OfNext(std::uint64_t bytes) {
    const std::uint64_t before = before_;
    before_ += bytes;
    return [this, before](std::uint64_t done, std::uint64_t /*total*/) {
      if (progress_) {
        progress_(before + done, total_);
      }
    };
  }

 private:
  const ProgressFunction& progress_;
  std::uint64_t total_;
  std::uint64_t before_ = 0;
};

/// Writes the parts into the staging directory and publishes it.
class TorchDirectory {
 public:
  TorchDirectory(CheckpointReader& reader, std::string source, const UnshardOptions& options,
                 Storage& storage)
      : reader_(reader), source_(std::move(source)), options_(options), storage_(storage) {}

  Result<ConvertReport> Write(const std::string& target) {
    VARVE_ASSIGN_OR_RETURN(const Value structure, reader_.ReadStructure(options_.stop));
    VARVE_ASSIGN_OR_RETURN(auto parts, FindParts(structure, options_));
    if (auto others = OthersOf(reader_); others && !options_.model_only) {
      parts.push_back(*std::move(others));
    }
    // All selections before anything is written: what cannot be written is known by then.
    std::vector<Selection> selections;
    std::uint64_t total = 0;
    for (const PartFile& part : parts) {
      VARVE_ASSIGN_OR_RETURN(Selection selection, Select(reader_, OptionsOf(part)));
      total += selection.tensor_bytes();
      selections.push_back(std::move(selection));
    }
    VARVE_ASSIGN_OR_RETURN(const auto config, ReadConfig(storage_, source_));
    JoinedProgress progress(options_.progress, total);
    VARVE_ASSIGN_OR_RETURN(const SaveId id, Id());
    const IndexFile mark = MarkOf(config);
    CommitTerms terms{.id = id,
                      .overwrite = options_.overwrite ? Overwrite::kInPlace : Overwrite::kNever,
                      .stop = options_.stop,
                      .resume = Resume::kYes,
                      .index = {.name = mark.name, .fixed = true, .beside_others = true}};
    for (const PartFile& part : parts) {
      terms.brought.push_back({part.name});
    }
    VARVE_ASSIGN_OR_RETURN(const auto commit, Commit::Begin(storage_, target, terms));
    VARVE_RETURN_IF_ERROR(commit->MarkStaging());
    ConvertReport report;
    std::vector<DataFile> written;
    VARVE_RETURN_IF_ERROR(WriteParts(parts, selections, *commit, &progress, &report, &written));
    VARVE_RETURN_IF_ERROR(commit->Publish(written, {mark}));
    if (config) {
      report.files.emplace_back(kOlmoMark);
    }
    if (!options_.model_only) {
      report.left_out = DescribeRest(reader_.metadata(), [&](std::string_view name) {
        return name.starts_with(kOfARank) ||
               std::any_of(parts.begin(), parts.end(), [&](const PartFile& part) {
                 return part.part.empty() || name == part.part || name.starts_with(part.part + ".");
               });
      });
    }
    return report;
  }

 private:
  Status WriteParts(const std::vector<PartFile>& parts, const std::vector<Selection>& selections,
                    const Commit& commit, JoinedProgress* progress, ConvertReport* report,
                    std::vector<DataFile>* written) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      ConvertOptions convert = OptionsOf(parts[i]);
      convert.progress = progress->OfNext(selections[i].tensor_bytes());
      const auto write_this = [&](const std::vector<FileSegment>& segments) {
        return WritePart(commit, parts[i].name, segments);
      };
      VARVE_ASSIGN_OR_RETURN(const ConvertReport file,
                             parts[i].is_safetensors
                                 ? WriteOlmoSafetensors(reader_, selections[i], convert, write_this)
                                 : WriteTorchFile(reader_, selections[i], convert, write_this));
      DataFile data;
      data.name = parts[i].name;
      data.size = file.bytes;
      written->push_back(std::move(data));
      report->bytes += file.bytes;
      report->tensor_count += file.tensor_count;
      report->object_count += file.object_count;
      report->merged.insert(report->merged.end(), selections[i].merged.begin(),
                            selections[i].merged.end());
      report->classes_left_out.insert(report->classes_left_out.end(),
                                      selections[i].classes_left_out.begin(),
                                      selections[i].classes_left_out.end());
    }
    return Status::Ok();
  }

  /// Returns a digest of all that decides what the files hold; a random id where the source cannot
  /// be listed.
  Result<SaveId> Id() {
    Bytes bytes;
    ByteWriter out(&bytes);
    const auto add = [&](std::string_view text) {
      out.U64(text.size());
      bytes.append(text);
    };
    add(options_.olmo_safetensors ? "unshard to OLMo's safetensors" : "unshard to torch");
    add(Version());
    add(source_);
    out.U8(options_.model_only ? 1 : 0);
    out.U8(options_.dtype ? 1 + static_cast<std::uint8_t>(*options_.dtype) : 0);
    std::map<std::string, std::vector<DirectoryEntry>> listed;
    for (const DataFile& file : reader_.metadata().files) {
      const std::string path = JoinPath(reader_.files_directory(), file.name);
      const auto [folder, is_new] = listed.try_emplace(ParentPath(path));
      if (is_new) {
        auto found = storage_.List(folder->first);
        if (found.status().code() == StatusCode::kUnimplemented) {
          return RandomSaveId();  // A web server's: nothing tells when a file was changed.
        }
        VARVE_RETURN_IF_ERROR(found.status());
        folder->second = *std::move(found);
      }
      const DirectoryEntry* const entry = FindEntry(folder->second, BaseName(path));
      if (entry == nullptr) {
        return DataLoss(path + " is missing");
      }
      add(file.name);
      out.U64(entry->size);
      out.U64(static_cast<std::uint64_t>(entry->modified_ns));
    }
    return SaveId{Xxh3(AsByteSpan(bytes)).bytes};
  }

  /// Writes one file, or takes the one that a dead unshard of the same has left. Returns its size.
  /// Where a claim stands for the directory, its name does not tell whose the files are: all are
  /// written.
  Result<std::uint64_t> WritePart(const Commit& commit, const std::string& name,
                                  const std::vector<FileSegment>& segments) {
    std::uint64_t size = 0;
    for (const FileSegment& segment : segments) {
      size += segment.bytes;
    }
    const std::string path = JoinPath(commit.staging(), name);
    if (commit.claim().empty()) {
      if (const auto left = storage_.OpenForRead(path); left.ok() && (*left)->size() == size) {
        return size;
      }
    }
    VARVE_RETURN_IF_ERROR(
        PublisherOf(storage_, path)->PublishFile(path, {.replaces = true}, [&](const auto& file) {
          return WriteSegmentsFile(storage_, file, segments, options_.stop).status();
        }));
    return size;
  }

  [[nodiscard]] ConvertOptions OptionsOf(const PartFile& part) const {
    ConvertOptions convert = AsConvert(options_);
    convert.part = part.part;
    convert.exclude.insert(convert.exclude.end(), part.exclude.begin(), part.exclude.end());
    if (part.is_model) {
      convert.dtype = options_.dtype;
    }
    return convert;
  }

  CheckpointReader& reader_;
  std::string source_;
  const UnshardOptions& options_;
  Storage& storage_;
};

}  // namespace

Result<ConvertReport> Unshard(const std::string& source_path, const std::string& target_path,
                              const UnshardOptions& options, Storage& storage) {
  if (options.to != ConvertTarget::kTorch) {
    if (options.olmo_safetensors) {
      return InvalidArgument("OLMo's safetensors are a choice of the target torch alone");
    }
    ConvertOptions convert = AsConvert(options);
    convert.dtype = options.dtype;
    if (options.model_only && options.to != ConvertTarget::kHf) {
      VARVE_ASSIGN_OR_RETURN(const auto reader,
                             CheckpointReader::Open(source_path, storage, options.stop));
      VARVE_ASSIGN_OR_RETURN(const Value structure, reader->ReadStructure(options.stop));
      convert.include = {FindModel(structure).prefix + "*"};
    }
    return Convert(source_path, target_path, convert, storage);
  }
  VARVE_ASSIGN_OR_RETURN(const std::string source, ResolvePath(source_path, storage));
  VARVE_ASSIGN_OR_RETURN(const std::string target, ResolveTarget(target_path, storage));
  VARVE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(source, storage, options.stop));
  auto report = TorchDirectory(*reader, source, options, storage).Write(target);
  if (options.stop.stop_requested() && report.status().code() == StatusCode::kCancelled) {
    report = CheckStop(options.stop).Annotate("nothing at the target has changed");
  }
  return std::move(report).Annotate("unshard " + source + " to " + target);
}

}  // namespace varve
