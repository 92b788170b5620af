#include "publish/upload_claim.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/stop.h"
#include "catalogue/family.h"
#include "catalogue/names.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxClaimBytes = std::uint64_t{64} << 20;

/// Returns the names in a claim. Those that leave the directory are left out: a claim is a file
/// that anyone may write.
std::vector<std::string> NamesIn(std::string_view claim) {
  std::vector<std::string> names;
  for (std::size_t at = claim.find('\n'); at != std::string_view::npos;) {
    const std::size_t begin = at + 1;
    at = claim.find('\n', begin);
    std::string name(claim.substr(begin, at == std::string_view::npos ? at : at - begin));
    const bool stays = !name.empty() && name.front() != '/' &&
                       ("/" + name + "/").find("/../") == std::string::npos;
    if (stays) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

/// Adds the files below a directory, by their names relative to `path`.
Status AddFiles(Storage& storage, const std::string& path, const std::string& below,
                std::map<std::string, DirectoryEntry>* files) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(JoinPath(path, below)));
  for (const DirectoryEntry& entry : entries) {
    const std::string name = below.empty() ? entry.name : JoinPath(below, entry.name);
    if (entry.is_directory) {
      VARVE_RETURN_IF_ERROR(AddFiles(storage, path, name, files));
    } else {
      files->emplace(name, entry);
    }
  }
  return Status::Ok();
}

/// Removes the beginnings of files of these names.
Status CollectParts(const std::string& path, const std::vector<std::string>& names, DryRun dry_run,
                    Storage& storage, GarbageReport* report) {
  ConditionalWrites& writes = *storage.extras().conditional_writes;
  VARVE_ASSIGN_OR_RETURN(const auto unfinished, writes.ListUnfinished(path));
  for (const ConditionalWrites::Unfinished& file : unfinished) {
    const bool named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return file.name == JoinPath(path, name);
    });
    if (named && IsDeadByAge(storage, path, file.begun_ns)) {
      report->removed.push_back(file.name);
      VARVE_RETURN_IF_ERROR(dry_run == DryRun::kYes ? Status::Ok() : writes.RemoveUnfinished(file));
    }
  }
  return Status::Ok();
}

}  // namespace

std::string EncodeUploadClaim(const SaveId& id, const std::vector<std::string>& names) {
  std::string claim = ToString(id) + "\n";
  for (const std::string& name : names) {
    claim += name + "\n";
  }
  return claim;
}

Result<std::string> ReadUploadClaim(Storage& storage, const std::string& directory) {
  return ReadWholeFile(storage, JoinPath(directory, kUploadClaim), kMaxClaimBytes);
}

Status CheckUploadClaim(Storage& storage, const std::string& directory, const std::string& claim) {
  const auto there = ReadUploadClaim(storage, directory);
  if (there.status().code() != StatusCode::kNotFound) {
    VARVE_RETURN_IF_ERROR(there.status());
  }
  return there.ok() && *there == claim
             ? Status::Ok()
             : FailedPrecondition(directory +
                                  ": this save has been given up, or another has taken its name "
                                  "over; this rank has written nothing");
}

Status CollectUpload(const std::string& path, DryRun dry_run, Storage& storage,
                     const std::stop_token& stop, GarbageReport* report) {
  const auto claim = ReadUploadClaim(storage, path);
  if (claim.status().code() == StatusCode::kNotFound) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(claim.status());
  const std::vector<std::string> names = NamesIn(*claim);
  std::map<std::string, DirectoryEntry> files;
  VARVE_RETURN_IF_ERROR(AddFiles(storage, path, "", &files));
  std::vector<std::string> dead{std::string(kUploadClaim)};  // The last one that goes.
  if (!names.empty() && !files.contains(names.back())) {
    dead.insert(dead.end(), names.begin(), names.end());
  }
  std::erase_if(dead, [&](const std::string& name) { return !files.contains(name); });
  std::int64_t modified_ns = 0;
  for (const std::string& name : dead) {
    modified_ns = std::max(modified_ns, files[name].modified_ns);
  }
  if (names.empty() || !IsDeadByAge(storage, path, modified_ns)) {
    report->kept.push_back(JoinPath(path, kUploadClaim));
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const std::string now, ReadUploadClaim(storage, path));
  if (now != *claim) {
    return Status::Ok();  // Taken over by one that lives.
  }
  VARVE_RETURN_IF_ERROR(CollectParts(path, names, dry_run, storage, report));
  for (auto name = dead.rbegin(); name != dead.rend(); ++name) {
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    report->removed.push_back(JoinPath(path, *name));
    report->bytes += files[*name].size;
    VARVE_RETURN_IF_ERROR(dry_run == DryRun::kYes ? Status::Ok()
                                                  : storage.Remove(JoinPath(path, *name)));
  }
  return Status::Ok();
}

}  // namespace varve
