#include "upload/copy_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/run_threads.h"
#include "catalogue/scan.h"
#include "format/data_file.h"
#include "interop/zip/directory.h"
#include "pipeline/buffer_pool.h"
#include "pipeline/file_reader.h"
#include "pipeline/record_sums.h"

namespace varve {
namespace {

/// Returns the sums of an archive of torch.save, by the bytes of the file; none for another file,
/// and for records whose writer left them out.
Result<std::vector<RecordSum>> SumsOfArchive(ReadableFile& file, const std::string& name) {
  if (!name.ends_with(".pt")) {
    return std::vector<RecordSum>{};
  }
  const RangeReader read = [&](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
    std::string bytes(size, '\0');
    VARVE_RETURN_IF_ERROR(
        file.ReadAt(begin, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
    return bytes;
  };
  constexpr std::string_view kZip = "PK";  // torch.save can write plain pickles too.
  if (file.size() < kZip.size()) {
    return DataLoss("the file has " + std::to_string(file.size()) +
                    " bytes: too few for anything that torch.save writes");
  }
  VARVE_ASSIGN_OR_RETURN(const std::string begin, read(0, kZip.size()));
  if (begin != kZip) {
    return std::vector<RecordSum>{};
  }
  VARVE_ASSIGN_OR_RETURN(const auto records, ReadZipDirectory(file.size(), read));
  std::vector<RecordSum> sums;
  for (const ZipRecord& record : records) {
    VARVE_ASSIGN_OR_RETURN(const std::uint64_t content,
                           FindRecordContent(record, file.size(), read));
    if (record.crc32 != 0) {
      sums.push_back({content, content + record.size, record.crc32, 0});
    }
  }
  return sums;
}

class Copy {
 public:
  Copy(const CopiedFile& file, const CopyTerms& terms, ReadableFile& source, WritableFile& target)
      : file_(file), terms_(terms), source_(source), target_(target) {}

  Status Run() {
    const bool has_blocks = file_.index != nullptr && !file_.index->block_crc32c.empty();
    std::uint64_t data_begin = 0;
    if (file_.has_header) {
      data_begin = file_.index->data_begin;
      VARVE_RETURN_IF_ERROR(CopyHeader());
    } else if (has_blocks) {
      data_begin = file_.index->data_begin;
      VARVE_RETURN_IF_ERROR(CopyRanges(Cut(0, data_begin), nullptr));
    }
    if (has_blocks) {
      const BlockGeometry geometry{data_begin, file_.size, file_.block_bytes};
      return CopyRanges(ScheduleReads({{data_begin, file_.size}}, geometry, 0,
                                      ReadUnitBytes(geometry.block_bytes)),
                        &geometry);
    }
    VARVE_ASSIGN_OR_RETURN(reads_.records, SumsOfArchive(source_, file_.from));
    RecordSums sums(&reads_);
    sums_ = &sums;
    VARVE_RETURN_IF_ERROR(CopyRanges(Cut(data_begin, file_.size), nullptr));
    return sums.Check([&](std::uint32_t) { return file_.from; });
  }

 private:
  /// Cuts bytes of the file into units of work. Their beginnings are aligned as `begin` is.
  static std::vector<ByteRange> Cut(std::uint64_t begin, std::uint64_t end) {
    std::vector<ByteRange> units;
    for (std::uint64_t at = begin; at < end; at += kPoolBlockBytes) {
      units.push_back({at, std::min(at + kPoolBlockBytes, end)});
    }
    return units;
  }

  Status CopyHeader() {
    VARVE_ASSIGN_OR_RETURN(const std::string header, ReadHeaderBytes(source_));
    if (header.size() != file_.index->data_begin) {
      return DataLoss("data begins at byte " + std::to_string(header.size()) + ", the index says " +
                      std::to_string(file_.index->data_begin));
    }
    VARVE_RETURN_IF_ERROR(CheckHeader(header, file_.index->header_crc32c));
    VARVE_RETURN_IF_ERROR(
        target_.WriteAt(0, std::as_bytes(std::span(header.data(), header.size()))));
    Advance(header.size());
    return Status::Ok();
  }

  /// Copies ranges, several at once. With a geometry they are of whole blocks, each with a
  /// checksum.
  Status CopyRanges(const std::vector<ByteRange>& units, const BlockGeometry* geometry) {
    return RunThreads(units.size(), terms_.threads, terms_.stop, [&](std::size_t i) -> Status {
      VARVE_ASSIGN_OR_RETURN(const auto memory, BufferPool::Shared().Acquire());
      const std::uint64_t size = units[i].end - units[i].begin;
      const std::span<std::byte> bytes(memory.data(), size);
      VARVE_RETURN_IF_ERROR(
          source_.ReadUncached(units[i].begin, memory.data(), size, kPoolBlockBytes));
      if (geometry != nullptr) {
        VARVE_RETURN_IF_ERROR(CheckUnit(*geometry, units[i].begin, bytes));
      } else if (sums_ != nullptr && !sums_->empty()) {
        RecordSums::Piece piece(sums_, units[i].begin);
        piece.Add(bytes);
        piece.Finish();
      }
      VARVE_RETURN_IF_ERROR(target_.WriteAt(units[i].begin, bytes));
      Advance(size);
      return Status::Ok();
    });
  }

  Status CheckUnit(const BlockGeometry& geometry, std::uint64_t begin,
                   std::span<const std::byte> bytes) const {
    for (std::uint64_t at = 0; at < bytes.size(); at += geometry.block_bytes) {
      const std::uint64_t size = std::min<std::uint64_t>(geometry.block_bytes, bytes.size() - at);
      const std::uint32_t got = Crc32c(bytes.subspan(at, size));
      const std::uint32_t want =
          file_.index->block_crc32c[(begin + at - geometry.data_begin) / geometry.block_bytes];
      if (got != want) {
        return DataLoss("bytes [" + std::to_string(begin + at) + ", " +
                        std::to_string(begin + at + size) + "): checksum mismatch (want " +
                        HexU32(want) + ", got " + HexU32(got) + ")");
      }
    }
    return Status::Ok();
  }

  void Advance(std::uint64_t bytes) const {
    if (terms_.on_copied) {
      terms_.on_copied(bytes);
    }
  }

  const CopiedFile& file_;
  const CopyTerms& terms_;
  ReadableFile& source_;
  WritableFile& target_;
  FileReads reads_;
  RecordSums* sums_ = nullptr;
};

}  // namespace

Status CopyFile(Storage& storage, const CopiedFile& file, const CopyTerms& terms) {
  const auto source = storage.OpenForRead(file.from);
  if (source.status().code() == StatusCode::kNotFound) {
    return DataLoss(file.from + " is missing");
  }
  VARVE_RETURN_IF_ERROR(source.status());
  if ((*source)->size() != file.size) {
    return DataLoss(file.from + " has " + std::to_string((*source)->size()) + " bytes instead of " +
                    std::to_string(file.size));
  }
  VARVE_ASSIGN_OR_RETURN(
      const auto target,
      storage.OpenForWrite(file.to, {.size = file.size, .exclusive = file.is_exclusive}));
  const Status copied = Copy(file, terms, **source, *target).Run();
  if (copied.code() == StatusCode::kDataLoss) {
    return copied.Annotate(file.from + " is damaged and was not uploaded");
  }
  VARVE_RETURN_IF_ERROR(copied);
  return target->Sync(file.size);
}

}  // namespace varve
