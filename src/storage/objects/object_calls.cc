#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "base/time_source.h"
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

const std::string& MessageOf(const Status& status) { return status.message(); }
template <class T>
const std::string& MessageOf(const Result<T>& result) {
  return result.status().message();
}

/// Does `action` with the object at `path`, unless the thread was asked to stop.
template <class Call>
auto Try(const std::string& action, const std::string& path, const Call& call) -> decltype(call()) {
  VARVE_RETURN_IF_ERROR(CheckNotStopped(action + path));
  auto result = call();
  return result.ok() || MessageOf(result).find(path) != std::string::npos
             ? std::move(result)
             : std::move(result).Annotate(action + path);
}

/// Returns the status of a write. It finds no absence of a checkpoint, on which a job would begin
/// anew: what was not there is the bucket, or the upload.
Status OfWrite(Status written) {
  return written.code() == StatusCode::kNotFound
             ? Unavailable(written.message()).With(written.details())
             : std::move(written);
}

/// Returns why an entry cannot be in the list of `prefix`; empty where it can.
std::string WhyMisplaced(const StoreEntry& object, const std::string& prefix, bool unfinished) {
  const std::string quoted = "\"" + object.name + "\"";
  if (object.is_folder && object.name + "/" == prefix) {
    return {};
  }
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

Status ObjectStore::ReadParts(const std::string& name, std::uint64_t offset,
                              std::span<const std::span<std::byte>> parts,
                              const std::string& version) {
  std::uint64_t bytes = 0;
  std::size_t used = 0;
  std::span<std::byte> only;
  for (const std::span<std::byte> part : parts) {
    bytes += part.size();
    used += part.empty() ? 0 : 1;
    only = part.empty() ? only : part;
  }
  if (used <= 1) {
    return used == 0 ? Status::Ok() : Read(name, offset, only, version);
  }
  // A call may be a request, or wait for an interpreter: one of them, not many.
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
  VARVE_RETURN_IF_ERROR(Read(name, offset, {buffer.get(), bytes}, version));
  const std::byte* from = buffer.get();
  for (const std::span<std::byte> part : parts) {
    if (!part.empty()) {
      std::memcpy(part.data(), from, part.size());
      from += part.size();
    }
  }
  return Status::Ok();
}

Result<std::string> ObjectCalls::NameOf(const std::string& path, bool is_object) const {
  if (!path.starts_with(prefix_)) {
    return InvalidArgument("\"" + path + "\" is no name of " + prefix_);
  }
  std::string name = path;  // JoinPath may have left a '/' at its end.
  while (name.ends_with('/') && name.size() > prefix_.size()) {
    name.pop_back();
  }
  VARVE_RETURN_IF_ERROR(CheckRegisteredName(name));
  name.erase(0, prefix_.size());
  VARVE_RETURN_IF_ERROR(store_->CheckName(name, is_object));
  return name;
}

Result<StoreEntry> ObjectCalls::Head(const std::string& name) const {
  return Try("look for ", PathOf(name), [&] { return store_->Head(name); });
}

Status ObjectCalls::Read(const std::string& name, std::uint64_t offset,
                         std::span<const std::span<std::byte>> parts,
                         const std::string& version) const {
  std::uint64_t bytes = 0;
  for (const std::span<std::byte> part : parts) {
    bytes += part.size();
  }
  return Try("read " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of ",
             PathOf(name), [&] { return store_->ReadParts(name, offset, parts, version); });
}

Result<std::vector<StoreEntry>> ObjectCalls::List(const std::string& prefix,
                                                  bool unfinished) const {
  const std::string action = unfinished ? "list uploads below " : "list ";
  VARVE_ASSIGN_OR_RETURN(
      auto objects, Try(action, PathOf(prefix), [&] { return store_->List(prefix, unfinished); }));
  for (const StoreEntry& object : objects) {
    if (const std::string why = WhyMisplaced(object, prefix, unfinished); !why.empty()) {
      return FailedPrecondition("the store returns " + why).Annotate(action + PathOf(prefix));
    }
  }
  return objects;
}

Result<std::vector<std::string>> ObjectCalls::ListAll(const std::string& prefix) const {
  auto listed = Try("list ", PathOf(prefix), [&] { return store_->ListAll(prefix); });
  if (listed.status().code() != StatusCode::kUnimplemented) {
    VARVE_RETURN_IF_ERROR(listed.status());
    for (const std::string& name : *listed) {
      if (!name.starts_with(prefix)) {
        return DataLoss("list " + PathOf(prefix) + ": the store returns \"" + name +
                        "\", which does not lie below it");
      }
    }
    return listed;
  }
  std::vector<std::string> names;
  VARVE_ASSIGN_OR_RETURN(const auto objects, List(prefix, /*unfinished=*/false));
  for (const StoreEntry& object : objects) {
    if (!object.is_folder) {
      names.push_back(object.name);
    } else if (object.name.size() >= prefix.size()) {  // Not the folder itself.
      VARVE_ASSIGN_OR_RETURN(auto below, ListAll(object.name + "/"));
      std::move(below.begin(), below.end(), std::back_inserter(names));
    }
  }
  return names;
}

Status ObjectCalls::Put(const std::string& name, std::span<const std::byte> data,
                        bool if_absent) const {
  return OfWrite(Try(if_absent ? "write, if absent, " : "write ", PathOf(name),
                     [&] { return store_->Put(name, data, if_absent); }));
}

Status ObjectCalls::Remove(const std::vector<std::string>& names) const {
  const std::string more =
      names.size() > 1 ? std::to_string(names.size()) + " objects, " : std::string();
  return names.empty()
             ? Status::Ok()
             : Try("remove " + more, PathOf(names.front()), [&] { return store_->Remove(names); });
}

Result<std::string> ObjectCalls::StartUpload(const std::string& name, std::uint64_t part_bytes,
                                             const std::string& mark) const {
  const std::string action = "begin the upload of ";
  auto id =
      Try(action, PathOf(name), [&] { return store_->StartMarkedUpload(name, part_bytes, mark); });
  if (!id.ok()) {
    return OfWrite(id.status());
  }
  return id->empty() ? FailedPrecondition(action + PathOf(name) + ": the store returns an empty id")
                     : std::move(id);
}

Result<std::string> ObjectCalls::UploadPart(const std::string& name, const std::string& upload,
                                            int number, std::span<const std::byte> data) const {
  auto part = Try("upload part " + std::to_string(number) + " of ", PathOf(name),
                  [&] { return store_->UploadPart(name, upload, number, data); });
  return part.ok() ? std::move(part) : OfWrite(part.status());
}

Status ObjectCalls::EndUpload(const std::string& name, const std::string& upload,
                              const std::vector<std::string>* parts) const {
  return Try(parts != nullptr ? "complete the upload of " : "give up the upload of ", PathOf(name),
             [&] { return store_->EndUpload(name, upload, parts); });
}

std::int64_t ObjectCalls::NowNs() const {
  const std::int64_t now = store_->NowNs();
  return now != 0 ? now : TimeOfDay().count();
}

}  // namespace varve
