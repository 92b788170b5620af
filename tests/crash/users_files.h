/// Files and folders that a user has put where a checkpoint is or will be, and that no save may
/// lose.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "publish/claim.h"
#include "varve/storage.h"

namespace varve::test {

class UsersFiles {
 public:
  UsersFiles() = default;
  /// `configuration`: nothing but what a folder of a tokenizer's may have. `beside_varve`: files of
  /// other formats too.
  UsersFiles(bool is_disk, bool configuration, bool beside_varve) : is_disk_(is_disk) {
    files_ = {{"tokenizer.json", "{}"}};
    if (configuration) {
      return;
    }
    files_["notes.txt"] = "mine";
    files_["__0_0.distcp.bak"] = "no data file";
    if (beside_varve) {
      files_["model.safetensors"] = "of another program";
      files_["data-train.safetensors"] = "samples";
    }
    if (is_disk) {
      files_["my.metadata"] = "no index";
      files_["tokenizer/vocab.txt"] = "a b c";
      files_["tokenizer/extra/merges.txt"] = "ab c";
      files_["tokenizer/extra/x.distcp"] = "of another checkpoint";
      link_ = "newest";
      empty_ = "empty";
    }
  }

  /// Counts a file from now on that was put there later.
  void Add(const std::string& name, const std::string& content) { files_[name] = content; }

  /// Writes them so that a power cut keeps them.
  Status Write(Storage& storage, const std::string& path) const {
    for (const auto& [name, content] : files_) {
      VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(JoinPath(path, name))));
      VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, JoinPath(path, name), content));
      VARVE_RETURN_IF_ERROR(storage.SyncDirectory(ParentPath(JoinPath(path, name))));
    }
    if (!link_.empty()) {
      VARVE_RETURN_IF_ERROR(storage.MakeDirectory(JoinPath(path, empty_)));
      VARVE_RETURN_IF_ERROR(
          storage.extras().symbolic_links->MakeLink("../step-0", JoinPath(path, link_)));
    }
    if (!files_.empty()) {
      VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path));
    }
    return Status::Ok();
  }

  /// Checks that all are beside the checkpoint.
  [[nodiscard]] testing::AssertionResult Are(Storage& storage, const std::string& path) const {
    if (!link_.empty() &&
        (!storage.List(JoinPath(path, empty_)).ok() ||
         !storage.extras().symbolic_links->ReadLink(JoinPath(path, link_)).ok())) {
      return testing::AssertionFailure() << "the link or the empty folder is lost";
    }
    return AreIn(storage, {path});
  }

  /// Checks that each file is beside the checkpoint, or under a hidden name beside `path`.
  [[nodiscard]] testing::AssertionResult AreSomewhere(Storage& storage, const std::string& run,
                                                      const std::string& path) const {
    std::vector<std::string> places{path};
    if (is_disk_) {
      const auto entries = storage.List(run);
      for (std::size_t i = 0; entries.ok() && i < entries->size(); ++i) {
        places.push_back(JoinPath(run, (*entries)[i].name));
      }
    }
    return AreIn(storage, places);
  }

 private:
  [[nodiscard]] testing::AssertionResult AreIn(Storage& storage,
                                               const std::vector<std::string>& places) const {
    for (const auto& [name, content] : files_) {
      bool found = false;
      for (const std::string& place : places) {
        const auto there = ReadWholeFile(storage, JoinPath(place, name), 1 << 20);
        found = found || (there.ok() && *there == content);
      }
      if (!found) {
        return testing::AssertionFailure() << name << " is lost";
      }
    }
    return testing::AssertionSuccess();
  }

  bool is_disk_ = false;
  std::map<std::string, std::string> files_;
  std::string link_;
  std::string empty_;
};

}  // namespace varve::test
