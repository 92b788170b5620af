/// The target of an upload or save whose files have fixed names, in a storage without renames. The
/// account of the steps is at the top of fixed_names.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"
#include "varve/storage.h"

namespace varve {

/// The right to write files of these names into one directory; for one process. Destroying it
/// without Publish gives the right back, and removes the files: none of them was visible as a part
/// of a checkpoint. Where another writer has the directory now, or has published there, it removes
/// nothing.
class FixedNames {
 public:
  /// Steps 1 and 2. `names` are those of all files, the mark last. Errors: AlreadyExists and
  /// FailedPrecondition without `in_place` when one of them is there, or another upload has the
  /// directory; FailedPrecondition for a pinned checkpoint and for one of Varve's own format.
  static Result<std::unique_ptr<FixedNames>> Begin(Storage& storage, const std::string& directory,
                                                   std::vector<std::string> names, bool in_place);
  FixedNames(const FixedNames&) = delete;
  FixedNames& operator=(const FixedNames&) = delete;
  ~FixedNames();

  /// Step 4: writes the mark, on condition that there is none.
  Status Publish(std::string_view content);

  /// Returns what the claim says: as Commit::claim.
  [[nodiscard]] const std::string& claim() const { return claim_; }

  /// As Commit::weak_publish.
  [[nodiscard]] bool weak_publish() const { return weak_publish_; }

  /// Leaves claim and files as they are: a rank that was lost may write yet.
  void Leave() { done_ = true; }

 private:
  FixedNames(Storage& storage, std::string directory, std::vector<std::string> names,
             std::string claim);
  Status CheckOccupant(bool* in_place);
  Status CheckFree();
  Status RemoveOld();
  Status End();
  Result<bool> IsOurs();

  Storage& storage_;
  const std::string directory_;
  const std::vector<std::string> names_;
  const std::string claim_;  ///< What our claim says.
  bool weak_publish_ = false;
  bool done_ = false;  ///< Nothing of it is to be removed.
};

}  // namespace varve
