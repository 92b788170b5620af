/// The index of a checkpoint, of any format, once it has been found and read.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/commit_record.h"
#include "interop/decoded.h"
#include "varve/metadata.h"
#include "varve/value.h"

namespace varve {

struct OpenedIndex {
  std::string directory;  ///< Where the files are.
  Metadata metadata;
  std::optional<CommitRecord> record;  ///< Nothing for a set of rank-local files, and for others'.
  bool displaced = false;
  bool headers_checked = false;  ///< The index was made of the data files' headers.
  // Set for indexes of other software that hold these themselves; see interop/decoded.h.
  std::optional<Value> structure{};
  std::vector<std::string> inline_values{};
  std::vector<RecordCrc> records{};  ///< By file and begin.
  /// By FQN: see interop/decoded.h.
  std::vector<std::pair<std::string, std::string>> stored_names{};
  /// The checkpoint's own directory where its record names another for its files; else empty.
  std::string record_directory{};

  std::string opened_as{};  ///< The directory or file that OpenIndex was given; empty elsewhere.

  /// The directory of side files where it is not that of the files; else empty.
  std::string side_directory{};

  /// Returns the directory that names of side files begin in.
  [[nodiscard]] const std::string& side_home() const {
    return side_directory.empty() ? directory : side_directory;
  }

  /// Returns the checkpoint's own directory, which has its record.
  [[nodiscard]] const std::string& home() const {
    return record_directory.empty() ? directory : record_directory;
  }
};

}  // namespace varve
