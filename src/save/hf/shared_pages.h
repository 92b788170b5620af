/// What the ranks of a save of whole-tensor safetensors files tell the coordinator, and the pages
/// that it writes for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "interop/safetensors/hf_checksums.h"
#include "save/hf/layout.h"
#include "save/hf/scatter_file.h"
#include "save/written_format.h"
#include "varve/status.h"

namespace varve {

/// What a rank tells the coordinator: sums by place, fragments with their bytes one after the
/// other.
struct HfReceipt {
  std::vector<BytesSum> sums;
  std::vector<HfRun> fragments;  ///< `image_begin` counts from the beginning of `content`.
  std::string_view content;      ///< Of what it was made of, or decoded from.
};

/// For processes of one version of Varve; never stored.
template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfReceipt>& receipt);

/// The bytes of the files that the coordinator has, and the sums of all bytes. The folder and the
/// receipts must outlive this, and what it returns.
class SharedPages {
 public:
  /// `headers`: whether the coordinator writes those too.
  SharedPages(const HfFolder& folder, bool headers);

  /// Errors: Internal for bytes outside of the files.
  Status AddRank(std::size_t rank, const HfReceipt& receipt);

  /// Returns the pages to be written, and gives `checksums` its files. Errors: Internal where the
  /// ranks have left a gap or overlap.
  Result<std::vector<FilePatch>> Finish(std::uint64_t block_bytes, HfChecksums* checksums);

 private:
  struct Part {
    std::uint64_t begin = 0;
    std::string_view content;
  };

  void Add(const HfRun& place, std::string_view content);
  FilePatch PatchOf(std::uint32_t number, std::uint64_t block_bytes);

  const HfFolder& folder_;
  std::vector<std::vector<Part>> parts_;  // By file.
  std::vector<BytesSum> sums_;
};

}  // namespace varve
