/// An ObjectStore in memory, as a program would register it, with the faults that such stores have.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/time_source.h"
#include "varve/storage_plugins.h"

namespace varve::test {

class StoreInMemory final : public ObjectStore {
 public:
  bool obeys_if_absent = true;
  bool knows_if_absent = true;
  Status fails_after_put;  ///< Returned by each Put `if_absent` that was carried out.
  int conflicts = 0;       ///< The next so many Puts `if_absent` are refused; nothing is done.
  std::vector<int> wrong_lists;  ///< Not empty: List returns a name that is not below the prefix.
  int calls = 0;

  Result<StoreEntry> Head(const std::string& name) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    const auto found = objects_.find(name);
    return found == objects_.end() ? Result<StoreEntry>(NotFound("no such object"))
                                   : Describe(name, found->second);
  }

  Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
              const std::string& version) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    const auto found = objects_.find(name);
    if (found == objects_.end()) {
      return NotFound("no such object");
    }
    const auto& [content, number] = found->second;
    if (!version.empty() && version != std::to_string(number)) {
      return FailedPrecondition("it was replaced");
    }
    if (offset + into.size() > content.size()) {
      return DataLoss("it ends before");
    }
    std::memcpy(into.data(), content.data() + offset, into.size());
    return Status::Ok();
  }

  Result<std::vector<StoreEntry>> List(const std::string& prefix, bool unfinished) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    std::vector<StoreEntry> found;
    if (!wrong_lists.empty()) {
      found.push_back({.name = "elsewhere"});
    }
    for (const auto& [id, upload] : uploads_) {
      if (unfinished && upload.name.starts_with(prefix)) {
        found.push_back({.name = upload.name, .modified_ns = TimeOfDay().count(), .upload = id});
      }
    }
    std::set<std::string> folders;
    for (const auto& [name, object] : objects_) {
      if (unfinished || !name.starts_with(prefix)) {
        continue;
      }
      const std::size_t slash = name.find('/', prefix.size());
      if (slash == std::string::npos) {
        found.push_back(Describe(name, object));
      } else if (folders.insert(name.substr(0, slash)).second) {
        found.push_back({.name = name.substr(0, slash), .is_folder = true});
      }
    }
    return found;
  }

  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    if (if_absent && !knows_if_absent) {
      return Unimplemented("no conditions here");
    }
    if (if_absent && conflicts > 0) {
      --conflicts;
      return AlreadyExists("conflict");
    }
    if (if_absent && obeys_if_absent && objects_.contains(name)) {
      return AlreadyExists("it exists");
    }
    objects_[name] = {std::string(AsText(data)), ++versions_};
    return if_absent ? fails_after_put : Status::Ok();
  }

  Status Remove(const std::vector<std::string>& names) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    for (const std::string& name : names) {
      objects_.erase(name);
    }
    return Status::Ok();
  }

  Result<std::string> StartUpload(const std::string& name, std::uint64_t /*bytes*/) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    std::string id = "upload-" + std::to_string(++versions_);
    uploads_[id] = {name, {}};
    return id;
  }

  Result<std::string> UploadPart(const std::string& /*name*/, const std::string& upload, int number,
                                 std::span<const std::byte> data) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    std::string id = "part-" + std::to_string(number);
    uploads_.at(upload).parts[id] = std::string(AsText(data));
    return id;
  }

  Status EndUpload(const std::string& name, const std::string& upload,
                   const std::vector<std::string>* parts) override {
    const std::scoped_lock lock(mutex_);
    ++calls;
    if (parts != nullptr) {
      std::string content;
      for (const std::string& part : *parts) {
        content += uploads_.at(upload).parts.at(part);
      }
      objects_[name] = {std::move(content), ++versions_};
    }
    uploads_.erase(upload);
    return Status::Ok();
  }

  [[nodiscard]] std::vector<std::string> Names() const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, object] : objects_) {
      names.push_back(name);
    }
    return names;
  }
  [[nodiscard]] std::size_t open_uploads() const {
    const std::scoped_lock lock(mutex_);
    return uploads_.size();
  }

 private:
  using Object = std::pair<std::string, int>;  // Content and version.
  struct Upload {
    std::string name;
    std::map<std::string, std::string> parts;
  };

  static StoreEntry Describe(const std::string& name, const Object& object) {
    return {.name = name,
            .size = object.first.size(),
            .modified_ns = TimeOfDay().count(),
            .version = std::to_string(object.second)};
  }

  mutable std::mutex mutex_;  // Guards all below.
  int versions_ = 0;
  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
};

}  // namespace varve::test
