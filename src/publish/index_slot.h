/// The place of the index that makes the files of a save a checkpoint. How it is replaced is what
/// differs between commits by rule B; the account is at the top of index_commit.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "publish/commit.h"
#include "varve/hash.h"
#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

class IndexSlot {
 public:
  /// `staging` is where the save writes its data files.
  IndexSlot(Storage& storage, std::string path, std::string staging)
      : storage_(storage), path_(std::move(path)), staging_(std::move(staging)) {}
  IndexSlot(const IndexSlot&) = delete;
  IndexSlot& operator=(const IndexSlot&) = delete;
  virtual ~IndexSlot() = default;

  /// Puts `content` in the place of what was there when the slot was made. Sets `*stays` where it
  /// may be there whatever is returned, so that what it names must stay. Errors: AlreadyExists and
  /// FailedPrecondition where another save was first.
  virtual Status Replace(const std::string& content, bool* stays) = 0;

  /// Removes what the old index named and the new one, of `files`, does not.
  virtual Status RemoveReplaced(const std::vector<DataFile>& files) = 0;

  /// Removes what the save has written, where no index can name it.
  virtual Status RemoveOwn() { return storage_.Remove(staging_); }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& staging() const { return staging_; }
  [[nodiscard]] virtual std::uint64_t first() const { return 0; }  ///< See Commit::first.

 protected:
  Storage& storage_;
  const std::string path_;
  const std::string staging_;
};

/// What stands at an index of one name, and what goes with it.
struct ReplacedIndex {
  std::optional<Hash128> digest;   ///< Nothing where there is none.
  std::vector<std::string> paths;  ///< In NAME: other indexes first, then what all of them name.
};

/// Returns the digest of a file; nothing where there is none.
Result<std::optional<Hash128>> DigestOfFile(Storage& storage, const std::string& path);

/// The slots in an object store: of a record, where `replaced` is the number of the newest one, 0
/// for none; and of an index with one name. `directory` is that of the data files.
std::unique_ptr<IndexSlot> NumberedSlot(Storage& storage, const std::string& path,
                                        const std::string& directory, std::uint64_t replaced);
std::unique_ptr<IndexSlot> ComparedSlot(Storage& storage, const std::string& path,
                                        const std::string& directory, const std::string& index,
                                        ReplacedIndex replaced);

/// Makes the slot of DCP's index in a directory that stays: steps 0 to 3 of dcp_in_place.cc. Adds
/// to `*conflicts`.
Result<std::unique_ptr<IndexSlot>> RenamedSlot(Storage& storage, const std::string& path,
                                               const CommitTerms& terms,
                                               std::vector<std::string>* conflicts);

/// Returns the error of a rank that would save beside a checkpoint of all ranks.
Status WouldNeverBeRead(const std::string& path);

}  // namespace varve
