/// The target of an upload whose files have fixed names, in a storage without renames. The account
/// of the steps is at the top of fixed_names.cc.
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
/// of a checkpoint.
class FixedNames {
 public:
  /// Steps 1 and 2. `names` are those of all files, the mark last. Errors: AlreadyExists and
  /// FailedPrecondition without `in_place` when one of them is there, or another upload has the
  /// directory.
  static Result<std::unique_ptr<FixedNames>> Begin(Storage& storage, const std::string& directory,
                                                   std::vector<std::string> names, bool in_place);
  FixedNames(const FixedNames&) = delete;
  FixedNames& operator=(const FixedNames&) = delete;
  ~FixedNames();

  /// Step 4: writes the mark, on condition that there is none.
  Status Publish(std::string_view content);

 private:
  FixedNames(Storage& storage, std::string directory, std::vector<std::string> names);
  Status RemoveOld();
  Status End();

  Storage& storage_;
  const std::string directory_;
  const std::vector<std::string> names_;
  bool done_ = false;
};

}  // namespace varve
