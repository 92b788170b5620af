// Verify answers one question: is every byte of this checkpoint the byte that was written? The
// index is checked when it is opened; each data file's header is decoded and compared with the
// index; each block of data is read and its checksum computed.

#include <algorithm>
#include <atomic>

#include "base/checksum.h"
#include "base/stop.h"
#include "catalogue/family.h"
#include "catalogue/formats.h"
#include "catalogue/open.h"
#include "catalogue/read_lock.h"
#include "catalogue/scan.h"
#include "catalogue/side_files.h"
#include "catalogue/verify_foreign.h"
#include "pipeline/file_reader.h"
#include "storage/any.h"
#include "varve/catalogue.h"
#include "varve/storage.h"

namespace varve {
namespace {

class Verifier {
 public:
  Verifier(Storage& storage, const OpenedIndex& opened, const ProgressFunction& progress,
           const std::stop_token& stop)
      : storage_(storage),
        opened_(opened),
        progress_(progress),
        stop_(stop),
        total_(opened_.metadata.TotalBytes()) {}

  Result<VerifyReport> Run() {
    std::vector<CheckedHeader> headers;
    bool all_readable = true;
    for (std::uint32_t i = 0; i < opened_.metadata.files.size(); ++i) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      all_readable = CheckFile(i, &headers) && all_readable;
      VARVE_RETURN_IF_ERROR(failed_);
    }
    if (all_readable) {
      // Intact headers and an intact manifest must agree.
      const Metadata& index = opened_.metadata;
      const bool apart = !headers.empty() && !headers[0].header.identity.coordinated;
      auto merged = MergeHeaders(std::move(headers));
      if (merged.ok() && apart && index.tensor_variants.empty() && index.object_variants.empty()) {
        // Repaired by a Varve that had the lowest rank's values alone for ranks that saved apart.
        merged->tensor_variants.clear();
        merged->object_variants.clear();
      }
      if (!merged.ok()) {
        Add("", 0, 0, {}, merged.status().message());
      } else if (merged->side_files = index.side_files;
                 (opened_.record ? WithoutHashes(*std::move(merged)) : *std::move(merged)) !=
                 index) {
        Add(std::string(kManifestName), 0, 0, {},
            "the index is not what the data files say of themselves; `varve repair` rebuilds it");
      }
    }
    VARVE_RETURN_IF_ERROR(
        CheckStop(stop_));  // Before what a stopped check calls damage is reported.
    CheckSideFiles();
    std::sort(report_.damages.begin(), report_.damages.end(), [](const Damage& a, const Damage& b) {
      return a.file != b.file ? a.file < b.file : a.begin < b.begin;
    });
    report_.bytes_checked = checked_;
    return std::move(report_);
  }

 private:
  void Add(std::string file, std::uint64_t begin, std::uint64_t end,
           std::vector<std::string> tensors, std::string problem) {
    report_.damages.push_back(
        {std::move(file), begin, end, std::move(tensors), std::move(problem)});
  }

  void CheckSideFiles() {
    for (const StoredFile& file : opened_.metadata.side_files) {
      if (const auto read = ReadSideFile(storage_, opened_.directory, file); !read.ok()) {
        Add(file.name, 0, file.size, {}, read.status().message());
      }
      checked_ += file.size;
    }
  }

  bool CheckFile(std::uint32_t number, std::vector<CheckedHeader>* headers) {
    const DataFile& expected = opened_.metadata.files[number];
    const std::string path = JoinPath(opened_.directory, expected.name);
    const auto whole_file = [&](std::string problem) {
      Add(expected.name, 0, expected.size, NamesIn(opened_.metadata, number, 0, expected.size),
          std::move(problem));
      return false;
    };
    const auto file = storage_.OpenForRead(path);
    if (IsForbidden(file.status())) {
      failed_ = file.status();
      return false;
    }
    if (!file.ok()) {
      return whole_file(file.status().message());
    }
    if ((*file)->size() != expected.size) {
      return whole_file("has " + std::to_string((*file)->size()) + " bytes instead of " +
                        std::to_string(expected.size));
    }
    const bool header_ok = CheckHeaderOf(**file, expected, headers);
    const BlockGeometry geometry{expected.data_begin, expected.size, opened_.metadata.block_bytes};
    const Status read = CheckBlocks(
        **file, geometry, expected.block_crc32c, BufferPool::Shared(), kVerifyThreads,
        [&](ByteRange range, std::uint32_t want, std::uint32_t got) {
          Add(expected.name, range.begin, range.end,
              NamesIn(opened_.metadata, number, range.begin, range.end),
              "checksum mismatch (want " + HexU32(want) + ", got " + HexU32(got) + ")");
        },
        [&](std::uint64_t bytes) {
          checked_ += bytes;
          if (progress_) {
            progress_(checked_, total_);
          }
        },
        stop_);
    if (!read.ok()) {
      return whole_file(read.message());
    }
    return header_ok;
  }

  bool CheckHeaderOf(ReadableFile& file, const DataFile& expected,
                     std::vector<CheckedHeader>* headers) {
    const auto bytes = ReadHeaderBytes(file);
    Status status = bytes.status();
    if (bytes.ok()) {
      checked_ += bytes->size();
      CheckedHeader checked;
      auto header = DecodeHeader(*bytes, &checked.header_crc32c);
      status = header.status();
      if (header.ok()) {
        checked.header = std::move(*header);
        checked.header_bytes = bytes->size();
        headers->push_back(std::move(checked));
      }
    }
    if (status.code() == StatusCode::kUnimplemented) {
      failed_ = status.Annotate(JoinPath(opened_.directory, expected.name));
    } else if (!status.ok()) {
      Add(expected.name, 0, expected.data_begin, {}, status.message());
    }
    return status.ok();
  }

  Storage& storage_;
  const OpenedIndex& opened_;
  const ProgressFunction& progress_;
  const std::stop_token& stop_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> checked_{0};
  Status failed_;  // A data file of a newer version, or that may not be read: no damage.
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> Verify(const std::string& path, Storage& given,
                            const ProgressFunction& progress, const std::stop_token& stop) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, given));
  Storage& storage = WithoutCache(given);  // A copy of before would hide damage.
  const auto opened = OpenLocked(storage, where, stop);
  if (opened.status().code() == StatusCode::kDataLoss) {
    std::vector<Damage> damages;
    const auto rest = OpenDespiteDamage(storage, where, &damages, stop);
    if (rest.ok() && !damages.empty() && rest->metadata.format != Format::kVarve) {
      return VerifyForeign(storage, *rest, progress, stop, damages).Annotate("verify " + where);
    }
    VerifyReport report;  // A damaged index is a finding, not a failure to look.
    report.damages = std::move(damages);
    if (report.damages.empty()) {
      report.damages.push_back({"", 0, 0, {}, opened.status().message()});
    }
    return report;
  }
  VARVE_RETURN_IF_ERROR(opened.status());
  const OpenedIndex& index = opened->index;
  auto report = index.metadata.format == Format::kVarve
                    ? Verifier(storage, index, progress, stop).Run()
                    : VerifyForeign(storage, index, progress, stop);
  if (report.ok() && !report->clean()) {
    // A save may have replaced the files meanwhile, or a removal taken them: no damage.
    if (Status status = UnlessReplaced(DataLoss("damaged"), storage, index);
        status.code() != StatusCode::kDataLoss) {
      return status.Annotate("verify " + where);
    }
  }
  return std::move(report).Annotate("verify " + where);
}

}  // namespace varve
