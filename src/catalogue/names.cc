#include "catalogue/names.h"

#include <array>
#include <charconv>
#include <cstdio>

#include "base/ascii.h"
#include "base/checksum.h"
#include "format/commit_record.h"
#include "varve/storage.h"

namespace varve {
namespace {

constexpr std::string_view kLockSuffix = ".varve-lock";
constexpr std::string_view kStagingInfix = ".varve-saving-";
constexpr std::string_view kRemovedInfix = ".varve-removed-";
constexpr std::string_view kQuarantinedInfix = ".varve-damaged-";
constexpr std::string_view kChannelInfix = ".varve-talk-";
constexpr std::string_view kDisplacedSuffix = ".varve-old";
constexpr std::string_view kFailedSuffix = ".varve-failed";
constexpr std::string_view kUploadSuffix = ".varve-upload";
constexpr std::string_view kPartSuffix = ".varve-part";
constexpr std::string_view kRankLockPrefix = ".rank-";
constexpr const char* kDataDirectory = "varve-data-";
constexpr const char* kRecordPrefix = "varve-";
constexpr std::string_view kRecordSuffix = ".json";
constexpr std::string_view kReasonSuffix = ".txt";
constexpr std::string_view kInPlaceLock = ".in-place.varve-lock";

std::string EncodeDigits(std::string_view name) {
  std::string encoded;
  for (const char c : name) {
    if (IsDigit(c)) {
      encoded += "%3";
      encoded += c;
    } else if (c == '%') {
      encoded += "%25";
    } else {
      encoded += c;
    }
  }
  return encoded;
}

/// Undoes EncodeDigits. Leaves anything else after a '%' as it is: older names are not encoded.
std::string DecodeDigits(std::string_view name) {
  std::string decoded;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const std::string_view rest = name.substr(i);
    if (rest.starts_with("%25")) {
      decoded += '%';
      i += 2;
    } else if (rest.size() > 2 && rest.starts_with("%3") && IsDigit(rest[2])) {
      decoded += rest[2];
      i += 2;
    } else {
      decoded += name[i];
    }
  }
  return decoded;
}

std::string Sibling(std::string_view path, std::string_view suffix) {
  return JoinPath(ParentPath(path), "." + EncodeDigits(BaseName(path)) + std::string(suffix));
}

}  // namespace

std::string LockPath(std::string_view path) { return Sibling(path, kLockSuffix); }

std::string StagingPath(std::string_view path, const SaveId& id) {
  return Sibling(path, std::string(kStagingInfix) + ToString(id).substr(0, 12));
}

std::string ChannelPath(std::string_view path, const SaveId& id) {
  return Sibling(path, std::string(kChannelInfix) + ToString(id).substr(0, 12));
}

std::string DisplacedPath(std::string_view path) { return Sibling(path, kDisplacedSuffix); }

std::string OldDisplacedPath(std::string_view path) {
  return JoinPath(ParentPath(path), "." + BaseName(path) + std::string(kDisplacedSuffix));
}

std::string OldLockPath(std::string_view path) {
  return JoinPath(ParentPath(path), "." + BaseName(path) + std::string(kLockSuffix));
}

std::string RemovedPath(std::string_view path, const SaveId& id) {
  return Sibling(path, std::string(kRemovedInfix) + ToString(id).substr(0, 12));
}

std::string QuarantinedPath(std::string_view path, const SaveId& id) {
  return Sibling(path, std::string(kQuarantinedInfix) + ToString(id).substr(0, 12));
}

std::optional<std::string> ParseQuarantinedName(std::string_view entry) {
  const std::size_t at = entry.rfind(kQuarantinedInfix);
  if (at == std::string_view::npos || at < 2 || entry[0] != '.') {
    return std::nullopt;
  }
  return DecodeDigits(entry.substr(1, at - 1));
}

std::string FailedPath(std::string_view path) { return Sibling(path, kFailedSuffix); }

std::string UploadNotePath(std::string_view path) { return Sibling(path, kUploadSuffix); }

std::optional<std::string> ParseUploadNote(std::string_view entry) {
  if (!entry.starts_with('.') || !entry.ends_with(kUploadSuffix) ||
      entry.size() < kUploadSuffix.size() + 2) {
    return std::nullopt;
  }
  return DecodeDigits(entry.substr(1, entry.size() - kUploadSuffix.size() - 1));
}

std::string RankLockPath(std::string_view directory, std::uint32_t rank) {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), ".rank-%05u.varve-lock", rank);
  return JoinPath(directory, name.data());
}

std::string InPlaceLockPath(std::string_view directory) {
  return JoinPath(directory, kInPlaceLock);
}

std::string PartPath(std::string_view directory, std::string_view file) {
  return JoinPath(directory, "." + std::string(file) + std::string(kPartSuffix));
}

std::optional<std::uint32_t> PartRank(std::string_view entry) {
  constexpr std::string_view kPrefix = ".data-";
  if (!entry.starts_with(kPrefix) || !entry.ends_with(kPartSuffix)) {
    return std::nullopt;
  }
  std::uint32_t rank = 0;
  const auto parsed =
      std::from_chars(entry.data() + kPrefix.size(), entry.data() + entry.size(), rank);
  return parsed.ec == std::errc() ? std::optional(rank) : std::nullopt;
}

bool IsInnerLock(std::string_view entry) {
  return (entry.starts_with(kRankLockPrefix) && entry.ends_with(kLockSuffix)) ||
         entry == kInPlaceLock;
}

std::optional<StaleName> ParseStaleName(std::string_view entry) {
  if (entry.size() < 2 || entry[0] != '.') {
    return std::nullopt;
  }
  entry.remove_prefix(1);
  struct Suffix {
    std::string_view text;
    StaleKind kind;
  };
  for (const Suffix& suffix :
       {Suffix{kLockSuffix, StaleKind::kLock}, Suffix{kDisplacedSuffix, StaleKind::kDisplaced},
        Suffix{kPartSuffix, StaleKind::kPart}, Suffix{kFailedSuffix, StaleKind::kFailed}}) {
    if (entry.size() > suffix.text.size() && entry.ends_with(suffix.text)) {
      entry.remove_suffix(suffix.text.size());
      return StaleName{suffix.kind,
                       suffix.kind == StaleKind::kPart ? std::string(entry) : DecodeDigits(entry)};
    }
  }
  for (const Suffix& infix :
       {Suffix{kStagingInfix, StaleKind::kStaging}, Suffix{kChannelInfix, StaleKind::kChannel},
        Suffix{kRemovedInfix, StaleKind::kRemoved}}) {
    const std::size_t at = entry.rfind(infix.text);
    if (at != std::string_view::npos && at > 0) {
      return StaleName{infix.kind, DecodeDigits(entry.substr(0, at))};
    }
  }
  return std::nullopt;
}

Status CheckCheckpointName(const std::string& path) {
  const std::string name = BaseName(path);
  if (path.empty()) {
    return InvalidArgument("the path is empty");
  }
  if (name.empty() || name == "." || name == ".." || name == "/") {
    return InvalidArgument("\"" + path +
                           "\" does not name a directory that can be made: give the "
                           "checkpoint's own name, such as run/step-100");
  }
  if (ParseStaleName(name) || ParseUploadNote(name) || IsDataDirectoryName(name)) {
    return InvalidArgument("\"" + path +
                           "\" looks like a name that Varve uses itself; choose "
                           "another one");
  }
  return Status::Ok();
}

std::string DataDirectoryName(const SaveId& id) { return kDataDirectory + ToString(id); }

bool IsDataDirectoryName(std::string_view name) {
  SaveId id;
  return name.starts_with(kDataDirectory) &&
         ParseHex(name.substr(std::string_view(kDataDirectory).size()), id.bytes);
}

std::string DataDirectoryOf(std::string_view name) {
  const std::size_t end = name.find('/');
  const bool is_below = end != std::string_view::npos && IsDataDirectoryName(name.substr(0, end));
  return std::string(is_below ? name.substr(0, end) : std::string_view());
}

std::string RecordName(std::uint64_t number) {
  return number == 1 ? std::string(kCommitRecordName)
                     : kRecordPrefix + std::to_string(number) + std::string(kRecordSuffix);
}

std::optional<std::uint64_t> RecordNumber(std::string_view name) {
  if (name == kCommitRecordName) {
    return 1;
  }
  const std::string_view prefix = kRecordPrefix;
  if (!name.starts_with(prefix) || !name.ends_with(kRecordSuffix) ||
      name.size() <= prefix.size() + kRecordSuffix.size()) {
    return std::nullopt;
  }
  const std::string_view digits =
      name.substr(prefix.size(), name.size() - prefix.size() - kRecordSuffix.size());
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  // One name a number: no sign, no zeros before it.
  const bool is_name = parsed.ec == std::errc() && number > 1 && RecordName(number) == name;
  return is_name ? std::optional(number) : std::nullopt;
}

std::string QuarantinedRecordName(const SaveId& id) {
  return std::string(kQuarantinedRecord) + ToString(id).substr(0, 12) + std::string(kRecordSuffix);
}

std::string QuarantineReasonName(const SaveId& id) {
  return std::string(kQuarantinedRecord) + ToString(id).substr(0, 12) + std::string(kReasonSuffix);
}

std::optional<std::string> ReasonOfQuarantinedRecord(std::string_view name) {
  constexpr std::size_t kDigits = 12;
  if (name.size() != kQuarantinedRecord.size() + kDigits + kRecordSuffix.size() ||
      !name.starts_with(kQuarantinedRecord) || !name.ends_with(kRecordSuffix)) {
    return std::nullopt;
  }
  name.remove_suffix(kRecordSuffix.size());
  return std::string(name) + std::string(kReasonSuffix);
}

bool FitsName(std::string_view pattern, std::string_view name) {
  for (; !pattern.empty(); pattern.remove_prefix(1)) {
    const char c = pattern.front();
    if (c == '*') {
      const std::size_t end = std::min(name.find('/'), name.size());
      std::size_t i = 0;
      while (i <= end && !FitsName(pattern.substr(1), name.substr(i))) {
        ++i;
      }
      return i <= end;
    }
    const bool is_run = c == '#' || c == '%';
    const std::string_view taken = c == '#'   ? "0123456789"
                                   : c == '%' ? "0123456789abcdef"
                                              : pattern.substr(0, 1);
    const std::size_t count = std::min(name.find_first_not_of(taken), name.size());
    if (count == 0) {
      return false;
    }
    name.remove_prefix(is_run && !pattern.substr(1).starts_with(c) ? count : 1);
  }
  return name.empty();
}

bool IsDataFileName(std::string_view name) {
  return FitsName("data-#-of-#.safetensors", name) || FitsName("data-#-of-#-%.safetensors", name);
}

}  // namespace varve
