/// The commit protocol: from a claimed name to a visible, durable checkpoint. The account of its
/// steps and the crash or race each one closes is at the top of commit.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "publish/other_files.h"
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

/// The index that makes the files of a save a checkpoint, where no directory takes a name at once.
struct IndexTerms {
  std::string name;  ///< ".metadata"; empty: Varve's own, whose name has a number in object stores.
  Format format = Format::kDcp;
  /// The data files have fixed names, those that the save brings. `name` is the mark that is
  /// written last; where it is empty, that is .varve-uploaded.
  bool fixed = false;
  /// With `fixed`: what stands there is removed first, as with Overwrite::kInPlace.
  bool in_place = false;
  /// The checkpoint may lie beside files that are not part of it.
  bool beside_others = false;
  /// The directory stays: it holds other things, or is a mount point. For DCP's index.
  bool stays = false;
  /// Set for an index of this rank alone, of which the other ranks do not know.
  std::optional<std::uint32_t> rank{};
};

/// What becomes of a staging directory that a dead save has left under the same id.
enum class Resume : std::uint8_t {
  kNo,   ///< It is removed, as those of all other ids.
  kYes,  ///< The save goes on in it. The id stands for all that decides what the files hold.
};

/// What a save wants of the name that it claims.
struct CommitTerms {
  SaveId id;
  Overwrite overwrite = Overwrite::kNever;
  std::stop_token stop{};  ///< Ends the verification of what is to be replaced.
  Resume resume = Resume::kNo;
  /// Files that the new checkpoint will have, as far as they are known: a file of the user's that
  /// has such a name is found before anything is written.
  std::vector<BroughtFile> brought{};
  IndexTerms index{};
};

/// The right to save under one name, and the directory in which the save takes place. Used by the
/// coordinator alone. Destroying it without Publish abandons the save: the directory is removed and
/// nothing has become visible.
class Commit {
 public:
  /// Claims a name: by rule A steps 0-4 of commit.cc, by rule B the first of index_commit.cc, and
  /// for fixed names in object stores those of fixed_names.cc. Errors: AlreadyExists;
  /// FailedPrecondition; InvalidArgument for a name that a checkpoint cannot have; Cancelled.
  static Result<std::unique_ptr<Commit>> Begin(Storage& storage, const std::string& name,
                                               const CommitTerms& terms);
  virtual ~Commit() = default;

  /// Returns the directory that the save's files are written into.
  [[nodiscard]] virtual const std::string& staging() const = 0;

  /// Returns what a fixed index has before the names of files in staging(): empty, or a directory
  /// and '/'.
  [[nodiscard]] virtual std::string below() const { return {}; }

  /// Returns the number of the first file of each rank, where lower ones are taken in staging().
  [[nodiscard]] virtual std::uint64_t first() const { return 0; }

  /// Gives the staging directory its mark: all that is in it is the save's, its folders too. A save
  /// that puts files into folders, or that can be resumed, calls this before the first of them.
  virtual Status MarkStaging() = 0;

  /// Checks that every data file is there with its exact size, writes the files of the index in
  /// this order, makes all durable and visible. Files beside an old checkpoint stay beside the new
  /// one. After an error the previous checkpoint, if any, is what `path` holds or recovers to.
  virtual Status Publish(const std::vector<DataFile>& files,
                         const std::vector<IndexFile>& index) = 0;

  /// Ends the save without removing anything that another process may write to yet: a rank was
  /// lost.
  virtual void Leave() {}

  /// Returns what tells a rank that the directory is still this save's; empty where its name does.
  [[nodiscard]] virtual std::string claim() const { return {}; }

  /// Files that Publish is to put beside the data files, checked by CheckSideFiles. An index of the
  /// caller's names them already; nothing but the index makes them part of the checkpoint.
  void AddSideFiles(std::vector<SideFile> files) { side_files_ = std::move(files); }

  /// Paths of files that stay under hidden names: they were put beside an old checkpoint while it
  /// was replaced, and the new one's directory has another file of that name.
  [[nodiscard]] const std::vector<std::string>& conflicts() const { return conflicts_; }

  /// Returns true where Publish may make this visible in place of another save that is published in
  /// the same moment, without a message: see ConditionalWrites::Prepare.
  [[nodiscard]] bool weak_publish() const { return weak_publish_; }
  void set_weak_publish(bool weak) { weak_publish_ = weak; }

 protected:
  bool weak_publish_ = false;
  std::vector<SideFile> side_files_;
  std::vector<std::string> conflicts_;
};

/// Begins a commit by rule B (index_commit.cc): in an object store, and of a DCP checkpoint in a
/// directory that stays, where names can be changed.
Result<std::unique_ptr<Commit>> BeginIndexCommit(Storage& storage, const std::string& path,
                                                 const CommitTerms& terms);
Result<std::unique_ptr<Commit>> BeginInPlaceCommit(Storage& storage, const std::string& path,
                                                   const CommitTerms& terms);

/// Begins a commit in an object store of files that have fixed names (fixed_names.cc).
Result<std::unique_ptr<Commit>> BeginFixedCommit(Storage& storage, const std::string& path,
                                                 const CommitTerms& terms);

/// Returns what the index of a Hugging Face folder says of its side files: all, but for those that
/// lie with the data, where `below` is Commit::below and not empty.
std::vector<StoredFile> SideFilesOfFolder(const std::vector<SideFile>& files,
                                          const std::string& below);

/// Returns the error of a save whose directory, or the one that is in, was removed or renamed, or
/// whose file system was unmounted: Unavailable in place of NotFound. That is a state of the
/// storage, which a later attempt may not find: no checkpoint was asked for that is not there.
Status WithoutNotFound(const Status& status);

/// Returns the error of a save whose last write may have been carried out, or may be yet: it keeps
/// its files. `written` is that write's.
Status MayBeVisible(const Status& written);

/// Returns true where a rank may still write files of a save that has failed with `outcome`: it is
/// late or lost, or its server has not answered a request.
bool MayStillWrite(const Status& outcome);

/// Checks that each data file is in `directory` with its exact size. Errors: DataLoss,
/// FailedPrecondition, naming ranks.
Status CheckFilesAreThere(Storage& storage, const std::string& directory,
                          const std::vector<DataFile>& files);

/// Returns the index of a native checkpoint: manifest.bin and varve.json.
Result<std::vector<IndexFile>> NativeIndex(const Metadata& metadata);

/// Replaces manifest.bin and varve.json in `directory` atomically, one durable before the other.
Status ReplaceIndex(Storage& storage, const std::string& directory, const Metadata& metadata);

}  // namespace varve
