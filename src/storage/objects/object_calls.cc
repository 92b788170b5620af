#include <algorithm>
#include <utility>

#include "storage/objects/object_storage.h"
#include "storage/objects/registry.h"
#include "varve/stop.h"

namespace varve {
namespace {

Status CheckNotStopped(const std::string& what) {
  return CurrentStop().stop_requested()
             ? Status(StatusCode::kCancelled, what + ": stopped on request")
             : Status::Ok();
}

/// Calls the store, unless the thread was asked to stop.
template <class Call>
auto Try(const std::string& what, const Call& call) -> decltype(call()) {
  VARVE_RETURN_IF_ERROR(CheckNotStopped(what));
  return call().Annotate(what);
}

/// Returns why an entry cannot be in the list of `prefix`; empty where it can.
std::string WhyMisplaced(const StoreEntry& object, const std::string& prefix, bool unfinished) {
  const std::string quoted = "\"" + object.name + "\"";
  if (object.name.size() <= prefix.size() || !object.name.starts_with(prefix)) {
    return quoted + ", which does not lie below it";
  }
  if (object.upload.empty() == unfinished) {
    return quoted + (unfinished ? " without the id of an upload" : ", which is an upload");
  }
  if (!unfinished && object.name.find('/', prefix.size()) != std::string::npos) {
    return quoted + ", which lies in a folder of it: want the folder";
  }
  return {};
}

}  // namespace

Result<std::string> ObjectCalls::NameOf(const std::string& path) const {
  if (!path.starts_with(prefix_)) {
    return InvalidArgument("\"" + path + "\" is no name of " + prefix_);
  }
  std::string name = path;  // JoinPath may have left a '/' at its end.
  while (name.ends_with('/') && name.size() > prefix_.size()) {
    name.pop_back();
  }
  VARVE_RETURN_IF_ERROR(CheckRegisteredName(name));
  return name.substr(prefix_.size());
}

Result<StoreEntry> ObjectCalls::Head(const std::string& name) const {
  return Try("look for " + PathOf(name), [&] { return store_->Head(name); });
}

Status ObjectCalls::Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
                         const std::string& version) const {
  return Try("read " + std::to_string(into.size()) + " bytes at " + std::to_string(offset) +
                 " of " + PathOf(name),
             [&] { return store_->Read(name, offset, into, version); });
}

Result<std::vector<StoreEntry>> ObjectCalls::List(const std::string& prefix,
                                                  bool unfinished) const {
  const std::string what = (unfinished ? "list uploads below " : "list ") + PathOf(prefix);
  VARVE_ASSIGN_OR_RETURN(auto objects, Try(what, [&] { return store_->List(prefix, unfinished); }));
  // Some stores list the folder itself, of which other programs have made an object.
  std::erase_if(objects, [&](const StoreEntry& object) {
    return object.is_folder && object.name + "/" == prefix;
  });
  for (const StoreEntry& object : objects) {
    if (const std::string why = WhyMisplaced(object, prefix, unfinished); !why.empty()) {
      return FailedPrecondition("the store returns " + why).Annotate(what);
    }
  }
  return objects;
}

Status ObjectCalls::Put(const std::string& name, std::span<const std::byte> data,
                        bool if_absent) const {
  return Try((if_absent ? "write, if absent, " : "write ") + PathOf(name),
             [&] { return store_->Put(name, data, if_absent); });
}

Status ObjectCalls::Remove(const std::vector<std::string>& names) const {
  return names.empty()
             ? Status::Ok()
             : Try("remove " + PathOf(names.front()) +
                       (names.size() > 1 ? " and " + std::to_string(names.size() - 1) + " more"
                                         : std::string()),
                   [&] { return store_->Remove(names); });
}

Result<std::string> ObjectCalls::StartUpload(const std::string& name,
                                             std::uint64_t part_bytes) const {
  return Try("begin the upload of " + PathOf(name),
             [&] { return store_->StartUpload(name, part_bytes); });
}

Result<std::string> ObjectCalls::UploadPart(const std::string& name, const std::string& upload,
                                            int number, std::span<const std::byte> data) const {
  return Try("upload part " + std::to_string(number) + " of " + PathOf(name),
             [&] { return store_->UploadPart(name, upload, number, data); });
}

Status ObjectCalls::EndUpload(const std::string& name, const std::string& upload,
                              const std::vector<std::string>* parts) const {
  return Try(
      (parts != nullptr ? "complete the upload of " : "give up the upload of ") + PathOf(name),
      [&] { return store_->EndUpload(name, upload, parts); });
}

}  // namespace varve
