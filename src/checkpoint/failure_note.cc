#include "checkpoint/failure_note.h"

#include "checkpoint/names.h"

namespace varve {

void NoteFailure(Storage& storage, const std::string& path, const Status& status) {
  if (status.ok() || status.code() == StatusCode::kCancelled ||
      status.code() == StatusCode::kAlreadyExists) {
    return;
  }
  const std::string note = FailedPath(path);
  (void)storage.Remove(note);
  (void)WriteWholeFile(storage, note, status.message());
}

}  // namespace varve
