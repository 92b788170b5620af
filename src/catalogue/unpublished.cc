#include "catalogue/unpublished.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "catalogue/names.h"

namespace varve {
namespace {

constexpr auto kDeadAfter = std::chrono::hours(24);

}  // namespace

/// Returns the bytes in a directory, and adds when the last of them were written.
Result<std::uint64_t> BytesIn(Storage& storage, const std::string& directory,
                              std::int64_t* modified_ns) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::uint64_t bytes = 0;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      VARVE_ASSIGN_OR_RETURN(const std::uint64_t below,
                             BytesIn(storage, JoinPath(directory, entry.name), modified_ns));
      bytes += below;
      continue;
    }
    bytes += entry.size;
    *modified_ns = std::max(*modified_ns, entry.modified_ns);
  }
  return bytes;
}

bool IsDeadByAge(Storage& storage, const std::string& path, std::int64_t modified_ns) {
  const std::int64_t now = storage.extras().conditional_writes->NowNs(path);
  return modified_ns > 0 && modified_ns + std::chrono::nanoseconds(kDeadAfter).count() < now;
}

Result<std::optional<CheckpointEntry>> ExamineUnpublished(
    Storage& storage, const std::string& path, const std::vector<DirectoryEntry>& entries) {
  const std::string name = BaseName(path);
  CheckpointEntry found{.name = name, .state = CheckpointState::kStale, .step = StepFromName(name)};
  std::int64_t modified_ns = 0;
  bool any = false;
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory || !IsDataDirectoryName(entry.name)) {
      continue;
    }
    const auto bytes = BytesIn(storage, JoinPath(path, entry.name), &modified_ns);
    if (bytes.status().code() == StatusCode::kNotFound) {
      continue;  // Removed since it was listed.
    }
    VARVE_RETURN_IF_ERROR(bytes.status());
    any = true;
    found.bytes += *bytes;
  }
  if (!any) {
    return std::optional<CheckpointEntry>();
  }
  if (IsDeadByAge(storage, path, modified_ns)) {
    found.detail = "of a dead save of " + name + ", or of its removal";
  } else {
    found.state = CheckpointState::kSaving;
    found.detail =
        "a save of " + name + " is under way, or it or its removal has died within the last day";
  }
  return std::optional(std::move(found));
}

}  // namespace varve
