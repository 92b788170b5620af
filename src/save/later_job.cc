#include "save/later_job.h"

#include <algorithm>

#include "catalogue/side_files.h"
#include "catalogue/step_notes.h"

namespace varve {

Status CheckIsNotOfALaterJob(Storage& storage, const std::string& path,
                             const std::vector<SideFile>& files, Overwrite overwrite) {
  const auto mine = std::find_if(files.begin(), files.end(),
                                 [](const SideFile& file) { return file.name == kStepNoteName; });
  if (mine == files.end() || overwrite == Overwrite::kNever) {
    return Status::Ok();
  }
  const auto note = DecodeStepNote(mine->content);
  const auto there = ReadStepNote(storage, path);
  if (!note.ok() || there.status().code() == StatusCode::kDataLoss) {
    return Status::Ok();
  }
  VARVE_RETURN_IF_ERROR(there.status());
  return !*there || (*there)->attempt <= note->attempt
             ? Status::Ok()
             : FailedPrecondition(path + " holds a step that a later job has saved (attempt " +
                                  std::to_string((*there)->attempt) + "; this job is attempt " +
                                  std::to_string(note->attempt) + "): it is not replaced");
}

}  // namespace varve
