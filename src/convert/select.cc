#include <algorithm>
#include <set>
#include <utility>

#include "base/nearest.h"
#include "base/stop.h"
#include "convert/writers.h"
#include "format/data_file.h"
#include "format/structure.h"
#include "plan/load_plan.h"
#include "tensor/box.h"
#include "tensor/cast.h"
#include "varve/catalogue.h"
#include "varve/storage.h"

namespace varve {
namespace {

/// The names that a conversion takes.
class Names {
 public:
  Names(const ConvertOptions& options, const ModelPart& model)
      : model_(model), include_(options.include), exclude_(options.exclude) {}

  [[nodiscard]] bool Exclude(const std::string& name) const { return exclude_.Match(name); }

  [[nodiscard]] bool Hold(const std::string& name) const {
    return model_.Holds(name) && (include_.empty() || include_.Match(name)) &&
           !exclude_.Match(name);
  }

 private:
  const ModelPart& model_;
  Globs include_;
  Globs exclude_;
};

/// Returns the glob that matches this name alone.
std::string GlobOf(std::string_view name) {
  std::string glob;
  for (const char c : name) {
    glob += std::string_view("*?[").find(c) == std::string_view::npos
                ? std::string(1, c)
                : "[" + std::string(1, c) + "]";
  }
  return glob;
}

/// Returns an error that names a glob of `include`, or the beginning of a `rename`, that no name of
/// the checkpoint has.
Status CheckNames(const Metadata& metadata, const ConvertOptions& options) {
  if (options.include.empty() && options.rename.empty()) {
    return Status::Ok();
  }
  std::vector<std::string> names;
  names.reserve(metadata.tensors.size() + metadata.objects.size());
  for (const TensorMetadata& tensor : metadata.tensors) {
    names.push_back(tensor.fqn);
  }
  for (const ObjectMetadata& object : metadata.objects) {
    names.push_back(object.fqn);
  }
  const auto find = [&](const std::string& asked, const std::string& what, const auto& fits) {
    if (std::any_of(names.begin(), names.end(), fits)) {
      return Status::Ok();
    }
    const std::string nearest = NearestToGlob(asked, names);
    std::string hint;
    if (nearest == asked) {
      hint = ", a glob; the one of that name is \"" + GlobOf(asked) + "\"";
    } else if (!nearest.empty()) {
      hint = "; the nearest is \"" + nearest + "\"";
    }
    return NotFound("no name in the checkpoint " + what + " \"" + asked + "\"" + hint);
  };
  for (const std::string& glob : options.include) {
    const Globs one({glob});
    VARVE_RETURN_IF_ERROR(
        find(glob, "matches", [&](const std::string& name) { return one.Match(name); }));
  }
  for (const auto& rename : options.rename) {
    VARVE_RETURN_IF_ERROR(find(rename.first, "begins with", [&](const std::string& name) {
      return name.starts_with(rename.first);
    }));
  }
  return Status::Ok();
}

std::string Renamed(const ConvertOptions& options, const std::string& name) {
  for (const auto& [from, to] : options.rename) {
    if (name.starts_with(from)) {
      return to + name.substr(from.size());
    }
  }
  return name;
}

/// Removes leaves that are not selected from a structure, and containers that become empty by that.
/// List positions are part of the names, so a list that loses one becomes a dict of the rest.
/// Returns false when nothing remains.
bool Prune(const Names& wanted, const std::string& path, bool root, Value* value) {
  if (value->kind == ValueKind::kTensorLeaf || value->kind == ValueKind::kObjectLeaf) {
    return wanted.Hold(path);
  }
  if (value->items.empty()) {
    return root || !wanted.Exclude(path);  // An empty container was saved as one.
  }
  std::vector<Value> kept;
  const bool mapping = IsMapping(value->kind);
  const std::size_t step = mapping ? 2 : 1;
  bool lost = false;
  for (std::size_t i = 0; i + step <= value->items.size(); i += step) {
    const std::string key = mapping ? KeyText(value->items[i]) : std::to_string(i);
    Value& item = value->items[i + step - 1];
    if (!Prune(wanted, NameBelow(path, root, key), false, &item)) {
      lost = true;
      continue;
    }
    kept.push_back(mapping ? std::move(value->items[i]) : Value::Str(key));
    kept.push_back(std::move(item));
  }
  if (!mapping && !lost) {
    std::vector<Value> items;
    for (std::size_t i = 1; i < kept.size(); i += 2) {
      items.push_back(std::move(kept[i]));
    }
    kept = std::move(items);
  } else if (!mapping || (lost && value->kind == ValueKind::kWrapped)) {
    value->kind = ValueKind::kDict;  // Of some of its inner tensors no wrapped one is made.
    value->text.clear();
  }
  value->items = std::move(kept);
  return !value->items.empty();
}

/// Returns what lies under keys joined with dots, or null.
const Value* PartOf(const Value& structure, std::string_view part) {
  if (part.empty()) {
    return &structure;
  }
  const bool mapping = IsMapping(structure.kind);
  const std::size_t step = mapping ? 2 : 1;
  for (std::size_t i = 0; i + step <= structure.items.size(); i += step) {
    const std::string key = mapping ? KeyText(structure.items[i]) : std::to_string(i);
    const Value& item = structure.items[i + step - 1];
    if (part == key) {
      return &item;
    }
    if (part.starts_with(key + ".")) {
      if (const Value* const found = PartOf(item, part.substr(key.size() + 1))) {
        return found;
      }
    }
  }
  return nullptr;
}

Status SelectTensors(CheckpointReader& reader, const ConvertOptions& options, const Names& wanted,
                     std::set<std::string>* names, Selection* selection) {
  const auto several = reader.metadata().SeveralValues();
  for (const TensorMetadata& tensor : reader.metadata().tensors) {
    if (!wanted.Hold(tensor.fqn)) {
      continue;
    }
    VARVE_RETURN_IF_ERROR(CheckStop(options.stop));
    SelectedTensor selected{Renamed(options, tensor.fqn), {&tensor, tensor.dtype}};
    if (options.dtype && IsCastable(tensor.dtype)) {
      selected.item.dtype = *options.dtype;
    }
    if (!names->insert(selected.fqn).second) {
      return InvalidArgument("two entries would be named \"" + selected.fqn + "\"");
    }
    // Before a file of its size is made: nothing may hold some of its elements.
    VARVE_RETURN_IF_ERROR(PlanLoad(reader.metadata(), {{tensor.fqn, tensor.dtype, tensor.shape,
                                                        WholeBox(tensor.shape)}})
                              .status());
    if (several.contains(tensor.fqn)) {
      selection->merged.push_back(tensor.fqn);
    }
    selection->tensors.push_back(std::move(selected));
  }
  return Status::Ok();
}

Status SelectObjects(CheckpointReader& reader, const ConvertOptions& options, const Names& wanted,
                     std::set<std::string>* names, Selection* selection, LeftOutClasses* classes) {
  std::vector<std::string> chosen;
  const auto several = reader.metadata().SeveralValues();
  for (const ObjectMetadata& object : reader.metadata().objects) {
    if (wanted.Hold(object.fqn)) {
      chosen.push_back(object.fqn);
      if (several.contains(object.fqn)) {
        selection->merged.push_back(object.fqn);
      }
    }
  }
  VARVE_ASSIGN_OR_RETURN(const auto values, reader.ReadObjects(chosen, options.stop));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    SelectedObject selected{Renamed(options, chosen[i]), EncodeValue(values[i])};
    classes->AddValue(values[i], chosen[i]);
    if (!names->insert(selected.fqn).second) {
      return InvalidArgument("two entries would be named \"" + selected.fqn + "\"");
    }
    selection->objects.push_back(std::move(selected));
  }
  return Status::Ok();
}

Result<ConvertReport> Write(CheckpointReader& reader, const Selection& selection,
                            const std::string& target, const ConvertOptions& options,
                            Storage& storage) {
  switch (options.to) {
    case ConvertTarget::kVarve:
    case ConvertTarget::kDcp: return ConvertBySaving(reader, selection, target, options, storage);
    case ConvertTarget::kSafetensors:
      return ConvertToSafetensors(reader, selection, target, options, storage);
    case ConvertTarget::kHf: return ConvertToHf(reader, selection, target, options, storage);
    case ConvertTarget::kTorch: return ConvertToTorch(reader, selection, target, options, storage);
  }
  return InvalidArgument("unknown target format");
}

}  // namespace

std::string NameBelow(const std::string& parent, bool root, const std::string& key) {
  return root ? key : parent + "." + key;
}

std::uint64_t Selection::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const SelectedTensor& tensor : tensors) {
    bytes += tensor.item.bytes();
  }
  return bytes;
}

Result<Selection> Select(CheckpointReader& reader, const ConvertOptions& asked) {
  ConvertOptions options = asked;
  if (options.dtype && !IsCastable(*options.dtype)) {
    return InvalidArgument("tensors are cast to float16, bfloat16, float32 or float64, not to " +
                           std::string(DTypeName(*options.dtype)));
  }
  if (options.to == ConvertTarget::kHf && options.shard_size == 0) {
    return InvalidArgument(
        "files of at most 0 bytes cannot hold tensors; give a larger shard size");
  }
  VARVE_RETURN_IF_ERROR(CheckNames(reader.metadata(), options));
  Selection selection;
  VARVE_ASSIGN_OR_RETURN(Value structure, reader.ReadStructure(options.stop));
  if (options.to == ConvertTarget::kHf && options.include.empty() && !options.everything) {
    selection.model = FindModel(structure);
    if (options.rename.empty() && !selection.model.prefix.empty()) {
      // A model finds its tensors by its own names: with a prefix it would be loaded with none.
      options.rename = {{selection.model.prefix, ""}};
    }
  }
  if (!options.part.empty()) {
    selection.model = {options.part + ".", ""};
    if (options.rename.empty()) {
      options.rename = {{selection.model.prefix, ""}};
    }
  }
  const Names wanted(options, selection.model);
  std::set<std::string> names;
  VARVE_RETURN_IF_ERROR(SelectTensors(reader, options, wanted, &names, &selection));
  LeftOutClasses classes(options.to == ConvertTarget::kTorch);
  VARVE_RETURN_IF_ERROR(SelectObjects(reader, options, wanted, &names, &selection, &classes));
  const bool has_entries = !reader.metadata().tensors.empty() || !reader.metadata().objects.empty();
  if (names.empty() && has_entries) {
    return NotFound("nothing in the checkpoint is selected" + selection.model.WhyNothing());
  }
  const bool keeps_names = options.part.empty() ? options.rename.empty() : asked.rename.empty();
  if (structure.kind != ValueKind::kNone && Prune(wanted, "", true, &structure)) {
    const Value* const part = PartOf(structure, options.part);
    if (keeps_names && part != nullptr) {
      selection.structure = EncodeValue(*part);
    }
    const bool keeps_classes =
        options.to == ConvertTarget::kVarve || options.to == ConvertTarget::kDcp;
    if (!keeps_classes || !keeps_names) {
      classes.AddStructure(structure, "", true);
    }
  }
  selection.classes_left_out = classes.Describe();
  return selection;
}

SelectedStream::SelectedStream(CheckpointReader& reader,
                               const std::vector<const SelectedTensor*>& tensors,
                               const ConvertOptions& options, std::uint64_t total_bytes)
    : stream_(
          reader,
          [&] {
            std::vector<StreamItem> items;
            items.reserve(tensors.size());
            for (const SelectedTensor* tensor : tensors) {
              items.push_back(tensor->item);
            }
            return items;
          }(),
          options.memory_budget, options.stop),
      progress_(options.progress),
      total_bytes_(total_bytes) {}

ProduceFunction SelectedStream::Bytes(std::size_t i) {
  return [this, i](std::uint64_t at, std::span<std::byte> out) {
    VARVE_RETURN_IF_ERROR(stream_.Read(i, at, out));
    done_ += out.size();
    if (progress_) {
      progress_(done_, total_bytes_);
    }
    return Status::Ok();
  };
}

Result<std::uint64_t> WriteSegmentsFile(Storage& storage, const std::string& path,
                                        const std::vector<FileSegment>& segments,
                                        const std::stop_token& stop,
                                        std::vector<std::uint32_t>* sums) {
  std::uint64_t size = 0;
  for (const FileSegment& segment : segments) {
    size += segment.bytes;
  }
  VARVE_ASSIGN_OR_RETURN(
      const auto file,
      storage.OpenForWrite(path, {.size = size, .direct = true, .exclusive = false}));
  WriteSegmentsOptions options;
  options.block_bytes = kDefaultBlockBytes;
  options.stop = stop;
  VARVE_ASSIGN_OR_RETURN(WrittenSegments written,
                         WriteSegments(*file, 0, segments, BufferPool::Shared(), options));
  VARVE_RETURN_IF_ERROR(file->Sync(size));
  if (sums != nullptr) {
    *sums = std::move(written.block_crc32c);
  }
  return size;
}

namespace {

/// Converts; `verb` names that in errors.
Result<ConvertReport> ConvertAs(const std::string& verb, const std::string& source_path,
                                const std::string& target_path, const ConvertOptions& options,
                                Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string source, ResolvePath(source_path, storage));
  VARVE_ASSIGN_OR_RETURN(const std::string target, ResolveTarget(target_path, storage));
  if (!options.hf_config.empty() && options.to != ConvertTarget::kHf) {
    return InvalidArgument(verb + " " + source +
                           ": configuration files are copied only into a Hugging Face folder");
  }
  VARVE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(source, storage, options.stop));
  auto selection = Select(*reader, options);
  if (!selection.ok()) {
    return selection.status().Annotate(verb + " " + source);
  }
  auto report = Write(*reader, *selection, target, options, storage);
  if (options.stop.stop_requested() && report.status().code() == StatusCode::kCancelled) {
    report = CheckStop(options.stop).Annotate("nothing at the target has changed");
  } else if (report.ok()) {
    report->left_out = DescribeRest(
        reader->metadata(), [&](std::string_view name) { return selection->model.Holds(name); });
    report->merged = std::move(selection->merged);
    report->classes_left_out = std::move(selection->classes_left_out);
  }
  return std::move(report).Annotate(verb + " " + source + " to " + target);
}

}  // namespace

Result<ConvertReport> Convert(const std::string& source_path, const std::string& target_path,
                              const ConvertOptions& options, Storage& storage) {
  return ConvertAs("convert", source_path, target_path, options, storage);
}

Result<ExportReport> ExportSafetensors(const std::string& path, const std::string& out,
                                       const ExportOptions& options, Storage& storage) {
  ConvertOptions convert;
  convert.to = ConvertTarget::kSafetensors;
  convert.include = options.include;
  convert.overwrite = options.overwrite;
  convert.progress = options.progress;
  convert.stop = options.stop;
  convert.memory_budget = std::uint64_t{128} << 20;
  VARVE_ASSIGN_OR_RETURN(ConvertReport report, ConvertAs("export", path, out, convert, storage));
  return ExportReport{report.tensor_count, report.bytes, std::move(report.skipped)};
}

}  // namespace varve
