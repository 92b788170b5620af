#include "save/hf/shared_pages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/checksum.h"

namespace varve {

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, BytesSum>& sum) {
  archive(sum.file, sum.begin, sum.bytes, sum.crc32c);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfRun>& run) {
  archive(run.file, run.begin, run.bytes, run.image_begin);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, HfReceipt>& receipt) {
  archive(receipt.sums, receipt.fragments, receipt.content);
}

template void Fields(FieldWriter& archive, const HfReceipt& receipt);
template void Fields(FieldReader& archive, HfReceipt& receipt);

SharedPages::SharedPages(const HfFolder& folder, bool headers)
    : folder_(folder), parts_(folder.files.size()) {
  for (std::uint32_t i = 0; headers && i < folder.files.size(); ++i) {
    Add({i, 0, folder.files[i].header.size(), 0}, folder.files[i].header);
  }
}

Status SharedPages::AddRank(std::size_t rank, const HfReceipt& receipt) {
  const auto fits = [&](std::uint32_t file, std::uint64_t begin, std::uint64_t bytes) {
    return file < folder_.files.size() && begin <= folder_.files[file].size &&
           bytes <= folder_.files[file].size - begin;
  };
  bool good = true;
  for (const BytesSum& sum : receipt.sums) {
    good = good && fits(sum.file, sum.begin, sum.bytes);
  }
  for (const HfRun& run : receipt.fragments) {
    good = good && fits(run.file, run.begin, run.bytes) &&
           run.image_begin <= receipt.content.size() &&
           run.bytes <= receipt.content.size() - run.image_begin;
  }
  if (!good) {
    return Internal("rank " + std::to_string(rank) + " reports bytes outside of the files");
  }
  sums_.insert(sums_.end(), receipt.sums.begin(), receipt.sums.end());
  for (const HfRun& run : receipt.fragments) {
    Add(run, receipt.content.substr(run.image_begin, run.bytes));
  }
  return Status::Ok();
}

Result<std::vector<FilePatch>> SharedPages::Finish(std::uint64_t block_bytes,
                                                   HfChecksums* checksums) {
  std::vector<FilePatch> patches;
  patches.reserve(folder_.files.size());
  for (std::uint32_t i = 0; i < folder_.files.size(); ++i) {
    FilePatch patch = PatchOf(i, block_bytes);
    if (!patch.parts.empty()) {
      patches.push_back(std::move(patch));
    }
  }
  JoinSums(block_bytes, &sums_);
  checksums->block_bytes = block_bytes;
  for (const HfFolder::File& file : folder_.files) {
    checksums->files.push_back({.name = file.name,
                                .size = file.size,
                                .header_bytes = file.header.size(),
                                .header_crc32c = Crc32c(AsByteSpan(file.header)),
                                .block_crc32c = {}});
  }
  for (const BytesSum& sum : sums_) {
    HfChecksums::File& file = checksums->files[sum.file];
    const std::uint64_t begin = file.block_crc32c.size() * block_bytes;
    if (sum.begin != begin || sum.bytes != std::min(block_bytes, file.size - begin)) {
      return Internal("the ranks have not written block " +
                      std::to_string(file.block_crc32c.size()) + " of " + file.name +
                      " once and whole");
    }
    file.block_crc32c.push_back(sum.crc32c);
  }
  for (const HfChecksums::File& file : checksums->files) {
    if (file.block_crc32c.size() != DivideUp(file.size, block_bytes)) {
      return Internal("the ranks have not written the end of " + file.name);
    }
  }
  return patches;
}

void SharedPages::Add(const HfRun& place, std::string_view content) {
  if (!content.empty()) {
    parts_[place.file].push_back({place.begin, content});
  }
}

/// Sorts the parts of a file, and notes their sums.
FilePatch SharedPages::PatchOf(std::uint32_t number, std::uint64_t block_bytes) {
  FilePatch patch{folder_.files[number].name, folder_.files[number].size, {}};
  std::vector<Part> parts = std::move(parts_[number]);
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin < b.begin; });
  patch.parts.reserve(parts.size());
  for (const Part& part : parts) {
    patch.parts.emplace_back(part.begin, part.content);
    AddSums(number, part.begin, AsByteSpan(part.content), block_bytes, &sums_);
  }
  return patch;
}

}  // namespace varve
