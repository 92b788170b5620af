#include "publish/publisher.h"

#include "catalogue/family.h"
#include "catalogue/names.h"
#include "publish/families.h"

namespace varve {

std::unique_ptr<Publisher> PublisherOf(Storage& storage, const std::string& path) {
  if (ConditionalWritesOf(storage, path) != nullptr) {
    return std::make_unique<ObjectPublisher>(storage);
  }
  return std::make_unique<FileSystemPublisher>(storage);
}

SavePlace FileSystemPublisher::PlaceOf(const std::string& path, const SaveId& id, bool /*fixed*/) {
  return {.directory = StagingPath(path, id), .is_made = true, .one_writer = false};
}

SavePlace ObjectPublisher::PlaceOf(const std::string& path, const SaveId& id, bool fixed) {
  return {.directory = fixed ? path : JoinPath(path, DataDirectoryName(id)),
          .is_made = false,
          .one_writer = true};
}

Status FileSystemPublisher::PublishFile(const std::string& path, const FileTerms& terms,
                                        const std::function<Status(const std::string&)>& write) {
  const std::string part =
      terms.part.empty() ? PartPath(ParentPath(path), BaseName(path)) : terms.part;
  VARVE_RETURN_IF_ERROR(storage_.Remove(part));  // Of a writer that died.
  Status status = write(part);
  if (status.ok()) {
    status =
        storage_.Rename(part, path, terms.replaces ? RenameMode::kReplace : RenameMode::kNoReplace);
  }
  if (!status.ok()) {
    (void)storage_.Remove(part);  // It may be as large as the model; the first error is reported.
    return status;
  }
  return storage_.SyncDirectory(ParentPath(path));
}

Status ObjectPublisher::PublishFile(const std::string& path, const FileTerms& /*terms*/,
                                    const std::function<Status(const std::string&)>& write) {
  // An object may have the name of a directory, which readers would look into instead.
  if (const auto below = storage_.List(path); below.ok() && !below->empty()) {
    return FailedPrecondition(path +
                              " is a directory: objects have names below it. One file cannot take "
                              "its place; choose another name");
  }
  return write(path);
}

Status FileSystemPublisher::CheckRenames(const std::string& /*path*/,
                                         std::string_view /*what*/) const {
  return Status::Ok();
}

Status ObjectPublisher::CheckRenames(const std::string& path, std::string_view what) const {
  return Unimplemented(
      path + ": " + std::string(what) +
      " is not written to an object store. Write it to a directory and upload that "
      "(`varve upload`, or upload_to of a save)");
}

}  // namespace varve
