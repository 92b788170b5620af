#include "publish/index_slot.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "catalogue/family.h"
#include "catalogue/names.h"
#include "format/commit_record.h"
#include "publish/records.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{8} << 30;

/// Returns the error of a save that another one has come before. `overwrites`: the checkpoint that
/// it was to replace.
Status AnotherWasFirst(const std::string& path, bool overwrites) {
  return overwrites
             ? FailedPrecondition(path +
                                  ": another save of this name was published meanwhile; its "
                                  "checkpoint stays")
             : AlreadyExists(path +
                             " already holds a checkpoint: another save of this name was published "
                             "meanwhile");
}

/// Returns true where it is not known whether a write was carried out, or will be: looking once
/// would not prove its absence.
bool IsUnknown(const Status& written) {
  return written.code() == StatusCode::kUnavailable || written.code() == StatusCode::kCancelled;
}

class Numbered final : public IndexSlot {
 public:
  Numbered(Storage& storage, const std::string& path, const std::string& directory,
           std::uint64_t replaced)
      : IndexSlot(storage, path, JoinPath(path, directory)),
        directory_(directory),
        replaced_(replaced) {}

  Status Replace(const std::string& content, bool* stays) override {
    VARVE_ASSIGN_OR_RETURN(CommitRecord record, DecodeCommitRecord(content));
    record.directory = directory_;
    const std::string name = JoinPath(path_, RecordName(replaced_ + 1));
    // The answer may be lost and the request sent again: the storage compares what is there with
    // what was to be written, and the record holds the id.
    const Status written =
        storage_.extras().conditional_writes->WriteIfAbsent(name, EncodeCommitRecord(record));
    if (IsUnknown(written)) {
      *stays = true;
      return MayBeVisible(written);
    }
    if (written.code() == StatusCode::kAlreadyExists) {
      return AnotherWasFirst(path_, replaced_ > 0);
    }
    return written.ok() ? CheckIsNewest(name) : written;
  }

  Status RemoveReplaced(const std::vector<DataFile>& /*files*/) override {
    return replaced_ > 0 ? RemoveRecordsBelow(storage_, path_, replaced_ + 1) : Status::Ok();
  }

 private:
  /// Takes the record `name` back where it is not the newest.
  Status CheckIsNewest(const std::string& name) {
    const auto entries = storage_.List(path_);
    if (entries.ok() && NewestRecord(*entries) > replaced_ + 1) {
      VARVE_RETURN_IF_ERROR(storage_.Remove(name));
      return AnotherWasFirst(path_, replaced_ > 0);
    }
    if (storage_.List(staging_).status().code() == StatusCode::kNotFound) {
      VARVE_RETURN_IF_ERROR(storage_.Remove(name));
      return FailedPrecondition(path_ + ": what this save had written was removed meanwhile");
    }
    return Status::Ok();
  }

  const std::string directory_;
  const std::uint64_t replaced_;
};

class Compared final : public IndexSlot {
 public:
  Compared(Storage& storage, const std::string& path, const std::string& directory,
           const std::string& index, ReplacedIndex replaced)
      : IndexSlot(storage, path, JoinPath(path, directory)),
        index_(JoinPath(path, index)),
        replaced_(std::move(replaced)) {}

  Status Replace(const std::string& content, bool* stays) override {
    ConditionalWrites& writes = *storage_.extras().conditional_writes;
    const bool overwrites = replaced_.digest.has_value();
    if (overwrites) {
      VARVE_ASSIGN_OR_RETURN(const auto now, DigestOfFile(storage_, index_));
      if (now != replaced_.digest) {
        return AnotherWasFirst(path_, overwrites);
      }
    }
    const Status written =
        overwrites ? writes.Replace(index_, content) : writes.WriteIfAbsent(index_, content);
    if (written.code() == StatusCode::kAlreadyExists) {
      return AnotherWasFirst(path_, overwrites);
    }
    *stays = written.ok() || IsUnknown(written);
    VARVE_RETURN_IF_ERROR(IsUnknown(written) ? MayBeVisible(written) : written);
    if (!overwrites) {
      return Status::Ok();
    }
    // Where it cannot be read, it is taken for ours: that was the last answer.
    const auto now = DigestOfFile(storage_, index_);
    return now.ok() && *now && **now != Xxh3(AsByteSpan(content))
               ? AnotherWasFirst(path_, overwrites)
               : Status::Ok();
  }

  Status RemoveReplaced(const std::vector<DataFile>& /*files*/) override {
    for (const std::string& name : replaced_.paths) {
      const std::string path = JoinPath(path_, name);
      if (!IsDataDirectoryName(name) && storage_.List(path).ok()) {
        continue;  // No file but a folder, which no save has made.
      }
      VARVE_RETURN_IF_ERROR(storage_.Remove(path));  // An index that is left needs what it names.
    }
    return Status::Ok();
  }

 private:
  const std::string index_;
  const ReplacedIndex replaced_;
};

}  // namespace

Result<std::optional<Hash128>> DigestOfFile(Storage& storage, const std::string& path) {
  const auto content = ReadWholeFile(storage, path, kMaxIndexBytes);
  if (content.status().code() == StatusCode::kNotFound) {
    return std::optional<Hash128>();
  }
  VARVE_RETURN_IF_ERROR(content.status());
  return std::optional(Xxh3(AsByteSpan(*content)));
}

std::unique_ptr<IndexSlot> NumberedSlot(Storage& storage, const std::string& path,
                                        const std::string& directory, std::uint64_t replaced) {
  return std::make_unique<Numbered>(storage, path, directory, replaced);
}

std::unique_ptr<IndexSlot> ComparedSlot(Storage& storage, const std::string& path,
                                        const std::string& directory, const std::string& index,
                                        ReplacedIndex replaced) {
  return std::make_unique<Compared>(storage, path, directory, index, std::move(replaced));
}

Status WouldNeverBeRead(const std::string& path) {
  return FailedPrecondition(path +
                            " holds a checkpoint that ranks saved together: what one rank saves "
                            "beside it would never be read; choose another name");
}

}  // namespace varve
