#include "upload/source.h"

#include <algorithm>
#include <utility>

#include "catalogue/formats/dcp.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "publish/other_files.h"

namespace varve {
namespace {

/// Returns true for hidden files of Varve's that are in a checkpoint's directory for a while.
bool IsTransient(const OwnFile& file) {
  return BaseName(file.name).starts_with('.') && !file.is_index;
}

Result<std::uint64_t> SizeOf(Storage& storage, const std::string& name) {
  VARVE_ASSIGN_OR_RETURN(const auto file, storage.OpenForRead(name));
  return file->size();
}

/// Returns the files that are not part of a checkpoint. Hidden ones are not reported.
std::vector<std::string> LeftOut(const Inventory& found) {
  std::vector<std::string> names;
  for (const OtherFile& other : found.others) {
    if (!other.is_directory && !BaseName(other.name).starts_with('.')) {
      names.push_back(other.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<UploadSource> NativeSource(Storage& storage, OpenedIndex opened) {
  UploadSource source;
  source.native = true;
  source.directory = opened.directory;
  source.save_id = opened.metadata.save_id;
  for (const DataFile& file : opened.metadata.files) {
    source.files.emplace(file.name, file.size);
  }
  // A save's own directory, as a record names it, holds nothing else.
  const bool is_separate = !opened.record_directory.empty();
  source.index = std::move(opened);
  if (!is_separate) {
    if (const auto found = TakeInventory(storage, source.directory); found.ok()) {
      source.left_out = LeftOut(*found);
    }
  }
  return source;
}

/// Finds the files of another software's layout, by its names.
Status AddForeignFiles(Storage& storage, UploadSource* source) {
  VARVE_ASSIGN_OR_RETURN(const Inventory found, TakeInventory(storage, source->directory));
  source->left_out = LeftOut(found);
  for (const OwnFile& file : found.own) {
    source->marked = source->marked || file.name == kUploadMark;
    if (IsTransient(file)) {
      continue;
    }
    if (file.is_index) {
      source->last.push_back(file.name);
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const std::uint64_t size,
                           SizeOf(storage, JoinPath(source->directory, file.name)));
    source->files.emplace(file.name, size);
  }
  if (source->files.empty() && source->last.empty()) {
    return FailedPrecondition(source->directory +
                              ": which of its files are a checkpoint's is not known");
  }
  // The index of the whole is at the top; those in folders are of parts.
  std::stable_partition(source->last.begin(), source->last.end(), [](const std::string& name) {
    return name.find('/') != std::string::npos;
  });
  // Of ranks that saved apart each has an index: some of them look like fewer ranks.
  const bool marked =
      !source->last.empty() && source->last.back().find('/') == std::string::npos &&
      (!IsDcpIndexName(source->last.back()) || source->last.back() == kDcpIndexName);
  if (!marked) {
    source->last.emplace_back(kUploadMark);  // The upload's own: the layout has none.
  }
  return Status::Ok();
}

Result<UploadSource> SourceOfOwnFiles(Storage& storage, const std::string& from,
                                      const UploadOptions& options) {
  if (options.mark.empty()) {
    return InvalidArgument("own_files without the name of a mark");
  }
  UploadSource source;
  source.directory = from;
  source.last = {options.mark};
  for (const std::string& name : *options.own_files) {
    if (name == options.mark) {
      continue;
    }
    VARVE_ASSIGN_OR_RETURN(const std::uint64_t size, SizeOf(storage, JoinPath(from, name)));
    source.files.emplace(name, size);
  }
  // Where all files are here their index may have checksums.
  if (auto opened = OpenIndex(storage, from, options.stop);
      opened.ok() && opened->metadata.format != Format::kVarve && opened->directory == from) {
    source.index = *std::move(opened);
  }
  return source;
}

}  // namespace

Result<UploadSource> LookAtSource(Storage& storage, const std::string& from,
                                  const UploadOptions& options) {
  if (options.own_files) {
    return SourceOfOwnFiles(storage, from, options);
  }
  VARVE_ASSIGN_OR_RETURN(OpenedIndex opened, OpenWanted(storage, from, options.stop));
  if (opened.metadata.format == Format::kVarve) {
    return NativeSource(storage, std::move(opened));
  }
  UploadSource source;
  source.directory = opened.directory;
  source.index = std::move(opened);
  VARVE_RETURN_IF_ERROR(AddForeignFiles(storage, &source));
  return source;
}

CopiedFile UploadSource::File(const std::string& name, std::uint64_t size) const {
  CopiedFile file{.from = JoinPath(directory, name), .to = {}, .size = size};
  if (!index) {
    return file;
  }
  const Metadata& metadata = index->metadata;
  const auto known = std::find_if(metadata.files.begin(), metadata.files.end(),
                                  [&](const DataFile& one) { return one.name == name; });
  if (known != metadata.files.end()) {
    file.index = &*known;
    file.block_bytes = metadata.block_bytes;
    file.has_header = native;
  }
  return file;
}

}  // namespace varve
