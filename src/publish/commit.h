/// The commit protocol: from a claimed name to a visible, durable checkpoint. The account of its
/// steps and the crash or race each one closes is at the top of commit.cc.
#pragma once

#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// A small file that makes a directory a checkpoint.
struct IndexFile {
  std::string name;
  std::string content;
};

/// What becomes of a staging directory that a dead save has left under the same id.
enum class Resume : std::uint8_t {
  kNo,   ///< It is removed, as those of all other ids.
  kYes,  ///< The save goes on in it. The id stands for all that decides what the files hold.
};

/// The right to save under one name, and the staging directory in which the save takes place.
/// Used by the coordinator alone. Destroying it without Publish abandons the save: the staging
/// directory is removed and nothing has become visible.
class Commit {
 public:
  /// Steps 0-4. `stop` ends the verification of step 4. Errors: AlreadyExists; FailedPrecondition;
  /// InvalidArgument for a name that a checkpoint cannot have; Cancelled.
  static Result<std::unique_ptr<Commit>> Begin(Storage& storage, const std::string& name,
                                               const SaveId& id, Overwrite overwrite,
                                               const std::stop_token& stop = {},
                                               Resume resume = Resume::kNo);
  Commit(const Commit&) = delete;
  Commit& operator=(const Commit&) = delete;
  ~Commit();

  [[nodiscard]] const std::string& staging() const { return staging_; }

  /// Gives the staging directory its mark: all that is in it is the save's, its folders too. A save
  /// that puts files into folders, or that can be resumed, calls this before the first of them.
  Status MarkStaging();

  /// Steps 6-11: checks that every data file is there with its exact size, writes the files of the
  /// index in this order, makes all durable and visible. Files beside an old checkpoint stay beside
  /// the new one. After an error the previous checkpoint, if any, is what `path` holds or recovers
  /// to.
  Status Publish(const std::vector<DataFile>& files, const std::vector<IndexFile>& index);

  /// Files that Publish is to put beside the data files, checked by CheckSideFiles. An index of the
  /// caller's names them already; nothing but the index makes them part of the checkpoint.
  void AddSideFiles(std::vector<SideFile> files) { side_files_ = std::move(files); }

  /// Paths of files that stay under hidden names: they were put beside an old checkpoint while it
  /// was replaced, and the new one's directory has another file of that name.
  [[nodiscard]] const std::vector<std::string>& conflicts() const { return conflicts_; }

 private:
  Commit(Storage& storage, std::string path, std::string staging, std::unique_ptr<StorageLock> lock,
         bool overwrite, bool over_empty);
  Status CheckFiles(const std::vector<DataFile>& files);
  Status SyncFolders(const std::vector<DataFile>& files);
  Status CheckOthers();
  Status AddFiles();
  Status FinishStaging();
  Status Displace();
  Status Replace();

  Storage& storage_;
  std::string path_;
  std::string staging_;
  std::unique_ptr<StorageLock> lock_;
  bool overwrite_;       ///< A checkpoint stands at `path_`.
  bool over_empty_;      ///< An empty directory does.
  bool marked_ = false;  ///< The staging directory has the mark.
  bool done_ = false;
  std::vector<SideFile> side_files_;
  std::vector<std::string> conflicts_;
};

/// Returns the index of a native checkpoint: manifest.bin and varve.json.
Result<std::vector<IndexFile>> NativeIndex(const Metadata& metadata);

/// Replaces manifest.bin and varve.json in `directory` atomically, one durable before the other.
Status ReplaceIndex(Storage& storage, const std::string& directory, const Metadata& metadata);

}  // namespace varve
