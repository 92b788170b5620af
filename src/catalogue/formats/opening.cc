#include "catalogue/formats/opening.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/run_threads.h"
#include "catalogue/names.h"
#include "catalogue/verify_foreign.h"
#include "interop/torch/archive.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr int kThreads = 8;
// A block of zstd gives at most 128 KiB and takes at least four bytes.
constexpr std::uint64_t kMaxZstdRatio = std::uint64_t{32} << 10;

/// Sets a file's size. An index that Varve wrote holds sizes, which are compared; without them the
/// file's own size counts.
Status SetSize(const std::string& directory, std::uint64_t size, DataFile* file) {
  if (!file->block_crc32c.empty() && file->size != size) {
    return DataLoss(JoinPath(directory, file->name) + ": " + std::to_string(size) +
                    " bytes instead of " + std::to_string(file->size));
  }
  file->size = size;
  return Status::Ok();
}

/// Notes that a file is damaged. Its size is 0 from then on, so that none of its items is read.
void SetAside(std::uint32_t number, std::string problem, Metadata* metadata,
              std::vector<Damage>* damages) {
  DataFile& file = metadata->files[number];
  damages->push_back({file.name, 0, 0,
                      NamesIn(*metadata, number, 0, std::numeric_limits<std::uint64_t>::max()),
                      std::move(problem)});
  file.size = 0;
}

/// Fills in the sizes that storage has of the files that an index names.
Status FillSizes(Storage& storage, const std::string& directory,
                 const std::vector<DirectoryEntry>& entries, Metadata* metadata,
                 std::vector<Damage>* damages) {
  const auto noted = [&](const DataFile& file, const Status& status) {
    if (damages == nullptr || status.code() != StatusCode::kDataLoss) {
      return false;
    }
    SetAside(static_cast<std::uint32_t>(&file - metadata->files.data()), status.message(), metadata,
             damages);
    return true;
  };
  std::map<std::string, std::vector<DirectoryEntry>, std::less<>> folders;  // Below.
  for (DataFile& file : metadata->files) {
    const std::vector<DirectoryEntry>* among = &entries;
    std::string_view name = file.name;
    if (const std::size_t end = name.rfind('/'); end != std::string_view::npos) {
      auto folder = folders.find(name.substr(0, end));
      if (folder == folders.end()) {
        auto listed = storage.List(JoinPath(directory, name.substr(0, end)));
        folder = folders
                     .emplace(name.substr(0, end),
                              listed.ok() ? *std::move(listed) : std::vector<DirectoryEntry>())
                     .first;
      }
      among = &folder->second;
      name.remove_prefix(end + 1);
    }
    if (const DirectoryEntry* const found = FindEntry(*among, name); found != nullptr) {
      Status set = SetSize(directory, found->size, &file);
      VARVE_RETURN_IF_ERROR(noted(file, set) ? Status::Ok() : std::move(set));
      continue;
    }
    auto opened = storage.OpenForRead(JoinPath(directory, file.name));
    Status set = opened.ok() ? SetSize(directory, (*opened)->size(), &file)
                 : opened.status().code() == StatusCode::kNotFound
                     ? DataLoss(JoinPath(directory, file.name) + " is missing")
                     : opened.status();
    VARVE_RETURN_IF_ERROR(noted(file, set) ? Status::Ok() : std::move(set));
  }
  return Status::Ok();
}

Result<NamedFile> OpenNamed(Storage& storage, const std::string& directory,
                            const std::string& name) {
  auto file = storage.OpenForRead(JoinPath(directory, name));
  if (!file.ok()) {
    return file.status().code() == StatusCode::kNotFound
               ? DataLoss(JoinPath(directory, name) + " is missing")
               : file.status();
  }
  const std::uint64_t size = (*file)->size();
  return NamedFile{name, size, ReadFromFile(std::move(*file))};
}

const DirectoryEntry* FindIn(const ListedFolder& folder, std::string_view name) {
  const auto found = std::find_if(folder.entries.begin(), folder.entries.end(),
                                  [&](const DirectoryEntry& entry) { return entry.name == name; });
  return found == folder.entries.end() ? nullptr : &*found;
}

}  // namespace

bool ListedFolder::HasFile(std::string_view name) const {
  const DirectoryEntry* const found = FindIn(*this, name);
  return found != nullptr && !found->is_directory;
}

bool ListedFolder::HasFolder(std::string_view name) const {
  const DirectoryEntry* const found = FindIn(*this, name);
  return found != nullptr && found->is_directory;
}

bool ListedFolder::Has(std::string_view pattern) const {
  const auto fits = [&](const DirectoryEntry& entry) {
    return !entry.is_directory && FitsName(pattern, entry.name);
  };
  const std::size_t end = pattern.find('/');
  if (end == std::string_view::npos) {
    return std::any_of(entries.begin(), entries.end(), fits);
  }
  const std::string_view below = pattern.substr(0, end);
  pattern.remove_prefix(end + 1);
  const auto inside = HasFolder(below) ? storage.List(JoinPath(path, below))
                                       : Result<std::vector<DirectoryEntry>>(NotFound(""));
  if (!inside.ok() && inside.status().code() != StatusCode::kNotFound && failed != nullptr &&
      failed->ok()) {
    *failed = inside.status();
  }
  return inside.ok() && std::any_of(inside->begin(), inside->end(), fits);
}

Status CheckIsUploaded(const ListedFolder& folder) {
  if (!folder.HasFile(kUploadClaim) || folder.HasFile(kUploadMark)) {
    return Status::Ok();
  }
  return FailedPrecondition(folder.path +
                            ": an upload or save is under way there, or has died: files may be "
                            "missing. If it has died, repeat it in place, or remove the "
                            "directory")
      .With({.reason = ErrorReason::kIncomplete});
}

RangeReader ReadFromFile(std::shared_ptr<ReadableFile> file) {
  return [file = std::move(file)](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
    std::string bytes(size, '\0');
    VARVE_RETURN_IF_ERROR(
        file->ReadAt(begin, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
    return bytes;
  };
}

Result<std::vector<NamedFile>> OpenAll(Storage& storage, const std::string& directory,
                                       const std::vector<std::string>& names) {
  constexpr std::size_t kMostKeptOpen = 32;
  std::vector<NamedFile> files;
  for (const std::string& name : names) {
    VARVE_ASSIGN_OR_RETURN(NamedFile file, OpenNamed(storage, directory, name));
    if (files.size() >= kMostKeptOpen) {
      file.read = [&storage, directory, name](std::uint64_t begin,
                                              std::uint64_t size) -> Result<std::string> {
        VARVE_ASSIGN_OR_RETURN(const NamedFile again, OpenNamed(storage, directory, name));
        return again.read(begin, size);
      };
    }
    files.push_back(std::move(file));
  }
  return files;
}

Status ForEachFile(Storage& storage, const std::string& directory,
                   const std::vector<std::string>& names,
                   const std::function<Status(std::size_t, const NamedFile&)>& read) {
  return RunThreads(names.size(), kThreads, {}, [&](std::size_t i) {
    VARVE_ASSIGN_OR_RETURN(const NamedFile file, OpenNamed(storage, directory, names[i]));
    return read(i, file);
  });
}

Status CheckExtents(const std::string& directory, const Metadata& metadata,
                    std::vector<Damage>* damages) {
  const auto check = [&](const Extent& extent, const std::string& fqn) {
    if (extent.encoding == Encoding::kInline || extent.end <= metadata.files[extent.file].size) {
      return Status::Ok();
    }
    const DataFile& file = metadata.files[extent.file];
    Status beyond =
        DataLoss(JoinPath(directory, file.name) + " has " + std::to_string(file.size) +
                 " bytes, but \"" + fqn + "\" is stored at [" + std::to_string(extent.begin) +
                 ", " + std::to_string(extent.end) + ")");
    if (damages == nullptr) {
      return beyond;
    }
    const auto noted = std::find_if(damages->begin(), damages->end(),
                                    [&](const Damage& damage) { return damage.file == file.name; });
    if (noted == damages->end()) {
      damages->push_back({file.name, file.size, extent.end, {fqn}, beyond.message()});
    } else if (noted->end > 0) {  // Else all of the file was noted.
      noted->end = std::max(noted->end, extent.end);
      noted->tensors.push_back(fqn);
    }
    return Status::Ok();
  };
  for (const TensorMetadata& tensor : metadata.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      VARVE_RETURN_IF_ERROR(check(chunk.extent, tensor.fqn));
      const std::uint64_t bytes = Volume(chunk.box.sizes) * ItemSize(tensor.dtype);
      const std::uint64_t stored = chunk.extent.end - chunk.extent.begin;
      const bool is_zstd = chunk.extent.encoding == Encoding::kZstdTorchItem;
      if (bytes > kAnyTensorBytes && bytes / (is_zstd ? kMaxZstdRatio : kMaxRepeats) > stored) {
        return DataLoss("tensor \"" + tensor.fqn + "\": the " + std::to_string(bytes) +
                        " bytes of " + ToString(chunk.box) + " cannot come from the " +
                        std::to_string(stored) + " that are stored");
      }
    }
  }
  for (const ObjectMetadata& object : metadata.objects) {
    VARVE_RETURN_IF_ERROR(check(object.extent, object.fqn));
  }
  return Status::Ok();
}

OpenedIndex Opened(std::string directory, Decoded decoded) {
  OpenedIndex opened;
  opened.directory = std::move(directory);
  opened.metadata = std::move(decoded.metadata);
  opened.structure = std::move(decoded.structure);
  opened.inline_values = std::move(decoded.inline_values);
  opened.records = std::move(decoded.records);
  opened.stored_names = std::move(decoded.stored_names);
  std::sort(opened.stored_names.begin(), opened.stored_names.end());
  std::sort(opened.records.begin(), opened.records.end(),
            [](const RecordCrc& a, const RecordCrc& b) {
              return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
            });
  return opened;
}

Result<OpenedIndex> OpenedWithSizes(const ListedFolder& folder, Decoded decoded) {
  VARVE_RETURN_IF_ERROR(
      FillSizes(folder.storage, folder.path, folder.entries, &decoded.metadata, folder.damages));
  VARVE_RETURN_IF_ERROR(CheckExtents(folder.path, decoded.metadata, folder.damages));
  return Opened(folder.path, std::move(decoded));
}

}  // namespace varve
