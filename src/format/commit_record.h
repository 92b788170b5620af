/// varve.json: the commit record. Its presence, whole, makes a directory a checkpoint. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/manifest.h"
#include "varve/metadata.h"
#include "varve/status.h"

namespace varve {

/// Names inside a checkpoint directory.
inline constexpr std::string_view kCommitRecordName = "varve.json";
inline constexpr std::string_view kManifestName = "manifest.bin";

/// The content of varve.json: enough to list and to recognise a checkpoint without its manifest.
struct CommitRecord {
  std::uint32_t format_version = 0;
  SaveId save_id;
  std::uint32_t world_size = 0;
  std::uint64_t file_count = 0;
  std::uint64_t tensor_count = 0;
  std::uint64_t object_count = 0;
  std::uint64_t total_bytes = 0;  ///< Of all data files.
  std::uint64_t manifest_bytes = 0;
  std::uint64_t frame_bytes = 0;       ///< Of the manifest's frame: of all but in version 4.
  std::uint32_t manifest_crc32c = 0;   ///< What its frame ends with; of the whole in version 1.
  std::string writer;                  ///< "varve 0.1.0".
  std::vector<StoredFile> side_files;  ///< By name.
  /// The directory beside the record that holds all other files. Empty: the record's own.
  std::string directory;
  friend bool operator==(const CommitRecord&, const CommitRecord&) = default;
};

CommitRecord MakeCommitRecord(const Metadata& metadata, const EncodedManifest& manifest);

/// Returns a small JSON object, one member a line, with a checksum over the whole text.
Bytes EncodeCommitRecord(const CommitRecord& record);

/// Decodes untrusted input; notices any changed byte. Errors: DataLoss; Unimplemented for a newer
/// format version.
Result<CommitRecord> DecodeCommitRecord(std::string_view bytes);

}  // namespace varve
