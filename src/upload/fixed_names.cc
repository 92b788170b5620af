// How a layout with fixed names of files comes to an object store. TO is its directory, MARK the
// file that makes the rest a checkpoint.
//
//  1. Claim TO: write TO/.varve-uploading, on condition that there is none. Two uploads at once
//  would
//     write each other's files; the second gets FailedPrecondition before it writes a byte. Nothing
//     ends the claim of one that died: a caller who knows that it died takes it over (`in_place`).
//  2. List TO. A file of a name that is to be written ends the upload here: objects have no second
//     name to stay under. With `in_place` MARK goes first, then the others that are to be written,
//     and the rest of the checkpoint that stood there. A crash from here on leaves no checkpoint.
//  3. (All ranks) write the files. Each appears whole. Then indexes of parts of the layout.
//  4. Write MARK on condition that there is none: from here on there is a checkpoint.
//  5. Remove the claim. A crash before leaves it beside a whole checkpoint, where it only keeps
//     later uploads from TO.

#include "upload/fixed_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/guarded.h"
#include "catalogue/own_names.h"
#include "publish/other_files.h"
#include "publish/save_id.h"

namespace varve {
namespace {

constexpr std::string_view kClaim = ".varve-uploading";
/// What WriteIfAbsent takes. A larger mark is written where there is none when it is begun: the
/// claim keeps other uploads away.
constexpr std::size_t kMaxConditional = std::size_t{1} << 20;

}  // namespace

FixedNames::FixedNames(Storage& storage, std::string directory, std::vector<std::string> names)
    : storage_(storage), directory_(std::move(directory)), names_(std::move(names)) {}

FixedNames::~FixedNames() {
  if (!done_) {
    // Best effort, the mark first. What is left is no checkpoint.
    (void)Guarded([&] {
      for (auto name = names_.rbegin(); name != names_.rend(); ++name) {
        (void)storage_.Remove(JoinPath(directory_, *name));
      }
      return End();
    });
  }
}

Status FixedNames::End() { return storage_.Remove(JoinPath(directory_, kClaim)); }

Result<std::unique_ptr<FixedNames>> FixedNames::Begin(Storage& storage,
                                                      const std::string& directory,
                                                      std::vector<std::string> names,
                                                      bool in_place) {
  ConditionalWrites& writes = *storage.extras().conditional_writes;
  VARVE_RETURN_IF_ERROR(writes.Prepare(directory));
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  const std::string claim = JoinPath(directory, kClaim);
  const Status claimed = writes.WriteIfAbsent(claim, ToString(id) + "\n");  // Step 1.
  if (claimed.code() == StatusCode::kAlreadyExists) {
    if (!in_place) {
      return FailedPrecondition(
          directory + ": another upload to it is under way, or has died. If it has, remove " +
          claim + ", or upload in place");
    }
    VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, claim, ToString(id) + "\n", false));
  } else {
    VARVE_RETURN_IF_ERROR(claimed);
  }
  std::unique_ptr<FixedNames> target(new FixedNames(storage, directory, std::move(names)));
  if (in_place) {
    VARVE_RETURN_IF_ERROR(target->RemoveOld());
    return target;
  }
  const auto found = TakeInventory(storage, directory);  // Step 2.
  Status free = found.status();
  if (found.ok()) {
    std::set<std::string> there;
    for (const OwnFile& file : found->own) {
      there.insert(file.name);
    }
    for (const OtherFile& file : found->others) {
      there.insert(file.name);
    }
    for (const std::string& name : target->names_) {
      if (there.contains(name)) {
        free = AlreadyExists(
            JoinPath(directory, name) +
            " is there. Objects have fixed names in this layout, so that the old checkpoint cannot "
            "stay until the new one is whole: upload to another name, or in place, which removes "
            "the old one first");
        break;
      }
    }
  }
  if (!free.ok()) {
    target->done_ = true;  // The files there are not ours.
    (void)target->End();
    return free;
  }
  return target;
}

Status FixedNames::RemoveOld() {
  // Looked at before the mark goes, which tells the layout.
  VARVE_ASSIGN_OR_RETURN(Inventory found, TakeInventory(storage_, directory_));
  VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(directory_, names_.back())));
  std::stable_partition(found.own.begin(), found.own.end(),
                        [](const OwnFile& file) { return file.is_index; });
  for (const OwnFile& file : found.own) {
    if (file.name != kClaim) {
      VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(directory_, file.name)));
    }
  }
  for (const std::string& name : names_) {
    VARVE_RETURN_IF_ERROR(storage_.Remove(JoinPath(directory_, name)));
  }
  return Status::Ok();
}

Status FixedNames::Publish(std::string_view content) {
  const std::string mark = JoinPath(directory_, names_.back());
  const Status written = content.size() <= kMaxConditional
                             ? storage_.extras().conditional_writes->WriteIfAbsent(mark, content)
                             : WriteWholeFile(storage_, mark, content);
  if (written.code() == StatusCode::kUnavailable || written.code() == StatusCode::kCancelled) {
    done_ = true;  // It may be there, or come yet: the files stay, and the claim.
    return Status(written.code(),
                  written.message() + "; the checkpoint may be visible: its files were kept")
        .With(written.details());
  }
  VARVE_RETURN_IF_ERROR(written);
  done_ = true;
  (void)Guarded([&] { return End(); });
  return Status::Ok();
}

}  // namespace varve
