#include "async/failure_note.h"

#include "base/guarded.h"
#include "catalogue/names.h"
#include "catalogue/open.h"

namespace varve {

void NoteFailure(Storage& storage, const std::string& path, const Status& status) {
  if (status.ok() || status.code() == StatusCode::kCancelled ||
      status.code() == StatusCode::kAlreadyExists) {
    return;
  }
  if (status.code() == StatusCode::kUnavailable && TellsNothing(storage, path, status)) {
    return;  // A server that did not answer is not asked again, for minutes.
  }
  // Best effort: the caller has the error.
  (void)Guarded([&] {
    const std::string note = FailedPath(path);
    (void)storage.Remove(note);
    return WriteWholeFile(storage, note, status.message());
  });
}

}  // namespace varve
