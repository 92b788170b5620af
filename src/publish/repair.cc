#include "base/stop.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/scan.h"
#include "publish/commit.h"
#include "varve/catalogue.h"
#include "varve/storage.h"

namespace varve {

Result<RepairReport> Repair(const std::string& given, Storage& storage,
                            const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  if (ParseStaleName(BaseName(path))) {
    return FailedPrecondition("repair " + path +
                              ": it is what a save or a removal has left, and no checkpoint; "
                              "`varve gc` looks after it");
  }
  VARVE_RETURN_IF_ERROR(NeedsRenames(storage, path, "a repaired index"));
  VARVE_ASSIGN_OR_RETURN(const ScanResult scan,
                         ScanDataFiles(storage, path, stop).Annotate("repair " + path));
  if (!scan.damaged.empty()) {
    return scan.damaged.front().Annotate("repair needs every data file's header; cannot use");
  }
  if (scan.groups.empty()) {
    return NotFound("repair " + path + ": there are no data files");
  }
  // An intact commit record says which save this is; without one the newest complete set is it.
  const auto record = ReadCommitRecord(storage, path);
  const FileGroup* chosen = nullptr;
  for (const FileGroup& group : scan.groups) {
    const bool named = record.ok() ? group.save_id == record->save_id : group.complete();
    if (chosen == nullptr && named) {
      chosen = &group;
    }
  }
  if (chosen == nullptr || !chosen->complete()) {
    const FileGroup& group = chosen != nullptr ? *chosen : scan.groups.front();
    return FailedPrecondition("repair " + path + ": data files of " + NameRanks(group.missing) +
                              " of a world of " + std::to_string(group.world_size) +
                              " are missing");
  }
  VARVE_ASSIGN_OR_RETURN(Metadata metadata, MergeHeaders(chosen->files).Annotate("repair " + path));
  if (record.ok()) {
    metadata.side_files = record->side_files;  // Data files do not name them.
  }
  RepairReport report{metadata.save_id, metadata.files.size(), true};
  const auto current = OpenIndex(storage, path);
  if (current.ok() && current->record && current->metadata == metadata) {
    report.changed = false;
    return report;
  }
  VARVE_RETURN_IF_ERROR(CheckStop(stop).Annotate("repair " + path));
  VARVE_RETURN_IF_ERROR(ReplaceIndex(storage, path, metadata));
  return report;
}

}  // namespace varve
