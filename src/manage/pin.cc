// What a person or a manager does to one checkpoint: pins, and quarantine.

#include "base/run_threads.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "catalogue/own_names.h"
#include "publish/claim.h"
#include "publish/publisher.h"
#include "varve/manage.h"

namespace varve {

Status PinCheckpoint(const std::string& given, std::string_view why, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  if (why.size() >= kMaxPinBytes) {
    return InvalidArgument("pin " + path + ": the reason has " + std::to_string(why.size()) +
                           " bytes; at most " + std::to_string(kMaxPinBytes - 1) + " are kept");
  }
  if (!storage.List(path).ok() && HoldsCheckpoint(storage, DisplacedPath(path))) {
    return FailedPrecondition("pin " + path + ": an interrupted overwrite has displaced it; " +
                              "`varve gc` gives it its name back");
  }
  if (!HoldsCheckpoint(storage, path)) {
    return NotFound("pin " + path + ": there is no checkpoint of that name");
  }
  if (why.empty() && ReadPin(storage, path)) {
    return Status::Ok();  // The reason that it has stays.
  }
  // A disk that is full leaves no pin, or the one before, and none without its reason.
  return PublisherOf(storage, path)
      ->PublishFile(JoinPath(path, kPinName), {.replaces = true},
                    [&](const std::string& file) {
                      return WriteWholeFile(storage, file, std::string(why) + "\n", false);
                    })
      .Annotate("pin " + path);
}

Status UnpinCheckpoint(const std::string& given, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  if (!HoldsCheckpoint(storage, path)) {
    return NotFound("unpin " + path + ": there is no checkpoint of that name");
  }
  VARVE_RETURN_IF_ERROR(storage.Remove(JoinPath(path, kPinName)).Annotate("unpin " + path));
  return storage.SyncDirectory(path);
}

Result<std::string> QuarantineCheckpoint(const std::string& given, std::string_view reason,
                                         Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string path, ResolveTarget(given, storage));
  const std::string what = "quarantine " + path;
  VARVE_RETURN_IF_ERROR(CheckCheckpointName(path).Annotate(what));
  if (SymbolicLinks* const links = storage.extras().symbolic_links;
      links != nullptr && links->ReadLink(path).ok()) {
    return FailedPrecondition(what + ": it is a symbolic link, which a user has made");
  }
  return PublisherOf(storage, path)->Quarantine(path, reason).Annotate(what);
}

Result<std::vector<std::optional<std::string>>> ReadPins(const std::vector<std::string>& paths,
                                                         Storage& storage,
                                                         const std::stop_token& stop) {
  std::vector<std::optional<std::string>> pins(paths.size());
  if (paths.empty()) {
    return pins;
  }
  VARVE_RETURN_IF_ERROR(
      RunThreads(paths.size(), ListThreads(storage, paths.front()), stop, [&](std::size_t i) {
        VARVE_ASSIGN_OR_RETURN(const std::string path, ResolvePath(paths[i], storage));
        pins[i] = ReadPin(storage, path);
        return Status::Ok();
      }));
  return pins;
}

}  // namespace varve
