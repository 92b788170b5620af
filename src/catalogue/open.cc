#include "catalogue/open.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/checksum.h"
#include "base/guarded.h"
#include "catalogue/family.h"
#include "catalogue/formats.h"
#include "catalogue/names.h"
#include "catalogue/own_names.h"
#include "catalogue/scan.h"
#include "format/manifest.h"
#include "format/manifest_frame.h"
#include "varve/catalogue.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{2} << 30;

std::string ManifestPath(const std::string& directory) {
  return JoinPath(directory, kManifestName);
}

Result<std::unique_ptr<ReadableFile>> OpenManifest(Storage& storage, const std::string& path) {
  auto file = storage.OpenForRead(path);
  if (file.status().code() == StatusCode::kNotFound) {
    return DataLoss(path + " is missing" + std::string(kRepairHint));
  }
  return file;
}

/// Returns the checksum of a manifest's frame as the record has it: without the frame's own, which
/// is the same number; in version 1 with it.
std::uint32_t CommittedChecksum(const CommitRecord& record, std::string_view frame) {
  const std::size_t own = record.format_version == 1 ? 0 : kManifestCrcBytes;
  return Crc32c(AsByteSpan(frame.substr(0, frame.size() - std::min(own, frame.size()))));
}

Result<Metadata> ReadManifest(Storage& storage, const std::string& directory,
                              const CommitRecord& record) {
  const std::string path = ManifestPath(directory);
  VARVE_ASSIGN_OR_RETURN(const auto file, OpenManifest(storage, path));
  const auto other = [&](const std::string& found, const std::string& want) {
    file->Forget(0, file->size());  // The next load fetches it anew.
    return DataLoss(path + ": not the manifest that varve.json commits to (" + found + "; want " +
                    want + ")" + std::string(kRepairHint));
  };
  if (file->size() != record.manifest_bytes || record.frame_bytes > kMaxFrameBytes) {
    return other(std::to_string(file->size()) + " bytes", std::to_string(record.manifest_bytes));
  }
  std::string bytes(record.frame_bytes, '\0');
  VARVE_RETURN_IF_ERROR(file->ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  if (const std::uint32_t checksum = CommittedChecksum(record, bytes);
      checksum != record.manifest_crc32c) {
    return other("checksum " + HexU32(checksum), HexU32(record.manifest_crc32c));
  }
  auto decoded = DecodeManifest(bytes);
  if (!decoded.ok()) {
    return decoded.status().Annotate(path);
  }
  if (decoded->save_id != record.save_id) {
    return DataLoss(path + " belongs to another save than varve.json" + std::string(kRepairHint));
  }
  return decoded;
}

}  // namespace

Result<OpenedIndex> OpenRecord(Storage& storage, const std::string& path, CommitRecord record) {
  const bool named = IsUnlisted(storage, path) && RecordNumber(BaseName(path));
  OpenedIndex opened{named ? ParentPath(path) : path, {}, std::nullopt};
  if (named || !record.directory.empty()) {
    opened.record_directory = path;
  }
  if (!record.directory.empty()) {
    opened.directory = JoinPath(opened.directory, record.directory);
  }
  VARVE_ASSIGN_OR_RETURN(opened.metadata,
                         Guarded([&] { return ReadManifest(storage, opened.directory, record); }));
  opened.metadata.side_files = record.side_files;
  opened.record = std::move(record);
  return opened;
}

namespace {

/// Opens what stands at a name on a storage without lists. The name of a file comes first: a server
/// may refuse to tell whether names below it are there.
Result<OpenedIndex> OpenUnlisted(Storage& storage, const std::string& path) {
  const bool names_record = RecordNumber(BaseName(path)).has_value();
  if (!names_record) {
    auto file = OpenKnownFile(storage, path);
    if (file.status().code() != StatusCode::kNotFound &&
        file.status().code() != StatusCode::kFailedPrecondition) {
      return file;
    }
  }
  auto record = ReadCommitRecord(storage, path);
  if (record.ok()) {
    return OpenRecord(storage, path, *std::move(record));
  }
  const StatusCode code = record.status().code();
  if (names_record || (code != StatusCode::kNotFound && code != StatusCode::kFailedPrecondition)) {
    return record.status();
  }
  auto other = OpenKnownUnlisted(storage, path);
  // Where the server refuses, or is not trusted, that is what the user can change.
  const bool refused =
      other.status().code() == StatusCode::kNotFound && code == StatusCode::kFailedPrecondition;
  return refused ? Result<OpenedIndex>(record.status()) : std::move(other);
}

/// Opens what a directory itself holds, or a file. Errors: NotFound where that is no checkpoint.
Result<OpenedIndex> OpenAt(Storage& storage, const std::string& path, const std::stop_token& stop) {
  if (IsUnlisted(storage, path)) {
    return OpenUnlisted(storage, path);
  }
  auto record = ReadCommitRecord(storage, path);
  if (record.ok()) {
    return OpenRecord(storage, path, std::move(*record));
  }
  if (record.status().code() == StatusCode::kDataLoss) {
    return DataLoss(record.status().message() + std::string(kRepairHint));
  }
  if (record.status().code() != StatusCode::kNotFound &&
      record.status().code() != StatusCode::kInvalidArgument) {  // The path is a file's.
    return record.status();
  }
  auto opened = OpenKnown(storage, path, stop);
  if (opened.ok() && opened->metadata.format != Format::kVarve) {
    const auto now = storage.List(path);  // A save may have published files since the first list.
    if (now.ok() && FormatOf(storage, path, *now) == Format::kVarve) {
      return OpenKnown(storage, path, stop);
    }
  }
  return opened;
}

/// Opens what is under the name, or what an overwrite has moved aside from it.
Result<OpenedIndex> TryOpenIndex(Storage& storage, const std::string& path,
                                 const std::stop_token& stop) {
  AskAnew(storage, path);
  auto opened = OpenAt(storage, path, stop);
  if (opened.status().code() != StatusCode::kNotFound) {
    return opened;
  }
  const auto entries = storage.List(path);
  if (entries.ok()) {
    return NotFound(path + " is not a checkpoint: it holds none that Varve knows");
  }
  if (entries.status().code() != StatusCode::kNotFound) {
    return opened;  // A file; the error says what it looks like.
  }
  for (const std::string& name : DisplacedPaths(storage, path)) {
    auto displaced = OpenAt(storage, name, stop);
    if (displaced.status().code() != StatusCode::kNotFound) {
      if (displaced.ok()) {
        displaced->displaced = true;
      }
      return displaced;
    }
  }
  return NotFound("there is no checkpoint at " + path);
}

}  // namespace

Result<OpenedIndex> OpenIndex(Storage& storage, const std::string& path,
                              const std::stop_token& stop) {
  // A save may publish between two of our reads. The reads then pair the record of one save with
  // the manifest of the other, or find neither, or take the first checkpoint of the name for a
  // folder of another format, or find the old one moved aside. A changed record under the name, or
  // none, shows that this is no damage.
  constexpr int kTries = 5;
  std::optional<SaveId> seen;  // In the record after the last try; nothing where there was none.
  for (int i = 1;; ++i) {
    auto opened = TryOpenIndex(storage, path, stop);
    if (opened.ok()) {
      opened->opened_as = path;
    }
    if ((opened.ok() && opened->record) || i == kTries ||
        opened.status().code() == StatusCode::kCancelled) {
      return opened;
    }
    if (opened.status().code() == StatusCode::kUnavailable &&
        TellsNothing(storage, path, opened.status())) {
      return opened;  // A server that gave no answer would be waited for once more.
    }
    const auto record = ReadCommitRecord(storage, path);
    if (!record.ok() && (opened.ok() || record.status().code() != StatusCode::kNotFound ||
                         opened.status().code() == StatusCode::kNotFound)) {
      return opened;
    }
    const auto now = record.ok() ? std::optional(record->save_id) : std::nullopt;
    if (i > 1 && seen == now) {
      return opened;
    }
    seen = now;
  }
}

std::string PathOf(const OpenedIndex& index) {
  const std::vector<DataFile>& files = index.metadata.files;
  const bool is_file =
      files.size() == 1 && index.opened_as == JoinPath(index.directory, files.front().name);
  return is_file ? index.opened_as : index.home();
}

bool WasReplaced(Storage& storage, const OpenedIndex& index) {
  const SaveId& id = index.metadata.save_id;
  if (const auto stale = ParseStaleName(BaseName(index.home()));
      index.displaced && stale &&
      HoldsCheckpoint(storage, JoinPath(ParentPath(index.home()), stale->target))) {
    return true;  // What was moved aside is removed now, its record last.
  }
  AskAnew(storage, index.home());
  const auto record = ReadCommitRecord(storage, index.home());
  if (record.ok()) {
    return record->save_id != id;
  }
  if (index.record) {
    return record.status().code() == StatusCode::kNotFound;
  }
  const std::string data =
      index.metadata.files.empty() ? "" : DataDirectoryOf(index.metadata.files.front().name);
  if (index.metadata.format != Format::kVarve && !data.empty()) {
    const auto names = IndexedNames(storage, index.home());
    const auto is_ours = [&](const std::string& name) { return DataDirectoryOf(name) == data; };
    return names.ok() ? std::none_of(names->begin(), names->end(), is_ours)
                      : names.status().code() == StatusCode::kNotFound;
  }
  const auto now = OpenIndex(storage, index.opened_as.empty() ? index.home() : index.opened_as);
  if (!now.ok()) {
    return now.status().code() == StatusCode::kNotFound;
  }
  const bool apart = index.metadata.format == Format::kVarve;  // Files of ranks that save apart.
  return apart ? now->metadata.save_id != id : now->metadata != index.metadata;
}

Status UnlessReplaced(const Status& read, Storage& storage, const OpenedIndex& index) {
  // In an object store a reader that has a file open still finds nothing once it is removed.
  const bool is_gone = read.code() == StatusCode::kNotFound;
  if (!is_gone && read.code() != StatusCode::kDataLoss) {
    return CopyOf(read);
  }
  if (WasReplaced(storage, index)) {
    return FailedPrecondition(PathOf(index) +
                              " was overwritten by another save, or removed, while it was being "
                              "read; open it again");
  }
  return is_gone ? DataLoss(read.message()).With(read.details()) : CopyOf(read);
}

namespace {

/// The checkpoints in `directory`, as far as names tell, and the newest of them.
struct Held {
  std::uint64_t count = 0;
  std::string newest;
};

Held CheckpointsIn(Storage& storage, const std::string& directory, const std::stop_token& stop) {
  Held held;
  std::optional<std::uint64_t> step;
  std::int64_t modified_ns = 0;
  const auto entries = storage.List(directory);
  for (const DirectoryEntry& entry : entries.ok() ? *entries : std::vector<DirectoryEntry>{}) {
    const std::string path = JoinPath(directory, entry.name);
    if (stop.stop_requested() || !entry.is_directory || ParseStaleName(entry.name) ||
        ParseQuarantinedName(entry.name) || IsDataDirectoryName(entry.name) ||
        !HoldsCheckpoint(storage, path)) {
      continue;
    }
    const auto its_step = StepFromName(entry.name);
    if (++held.count == 1 || its_step > step ||
        (its_step == step && entry.modified_ns > modified_ns)) {
      held.newest = path;
      step = its_step;
      modified_ns = entry.modified_ns;
    }
  }
  return held;
}

}  // namespace

Result<OpenedIndex> OpenWanted(Storage& storage, const std::string& path,
                               const std::stop_token& stop) {
  auto opened = OpenIndex(storage, path, stop);
  if (opened.status().code() != StatusCode::kNotFound) {
    return opened;
  }
  const Held held = CheckpointsIn(storage, path, stop);
  if (held.count == 0) {
    std::vector<CheckpointEntry> beside;
    VARVE_RETURN_IF_ERROR(AddBeside(storage, path, /*has_checkpoint=*/false, &beside));
    return beside.size() == 1 && beside.front().state != CheckpointState::kQuarantined
               ? NotFound(path + " is not a checkpoint, but holds data: " + beside.front().detail)
               : opened;
  }
  return NotFound(path + " is not a checkpoint but a directory of " + std::to_string(held.count) +
                  (held.count == 1 ? " checkpoint: " : " checkpoints; the newest is ") +
                  held.newest + "; `varve latest " + path +
                  "` prints the newest one that is whole");
}

}  // namespace varve
