// Verification of other software's checkpoints answers three questions: does every stored item hold
// what the index says, do its zip checksums match its bytes, and do the chunks of every tensor
// cover all of it?

#include "catalogue/verify_foreign.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "base/checksum.h"
#include "base/run_threads.h"
#include "base/stop.h"
#include "catalogue/chunk_source.h"
#include "catalogue/files.h"
#include "catalogue/formats/hf.h"
#include "catalogue/names.h"
#include "catalogue/side_files.h"
#include "interop/torch/archive.h"
#include "interop/zip/directory.h"
#include "pipeline/buffer_pool.h"
#include "plan/load_plan.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{1} << 30;

/// A stored item: a chunk of a tensor, or a plain value.
struct Item {
  const TensorMetadata* tensor = nullptr;  ///< Null for a plain value.
  std::uint32_t chunk = 0;                 ///< Of the tensor's.
  std::string fqn;
  Extent extent;
};

class ForeignVerifier {
 public:
  ForeignVerifier(Storage& storage, const OpenedIndex& opened, const ProgressFunction& progress,
                  const std::stop_token& stop, std::vector<Damage> damages)
      : storage_(storage),
        opened_(opened),
        files_(storage, opened),
        progress_(progress),
        stop_(stop) {
    report_.damages = std::move(damages);
  }

  Result<VerifyReport> Run() {
    CheckCoverage();
    std::vector<Item> items = Items();
    for (const Item& item : items) {
      total_ += item.extent.end - item.extent.begin;
    }
    if (opened_.metadata.block_bytes > 0) {
      total_ += opened_.metadata.TotalBytes();
    }
    for (const RecordCrc& record : opened_.records) {
      total_ += record.end - record.begin;
    }
    // An error of one item is reported, not returned: the others are still checked.
    (void)RunThreads(items.size(), kVerifyThreads, stop_, [&](std::size_t i) {
      CheckItem(items[i]);
      return Status::Ok();
    });
    (void)RunThreads(opened_.records.size(), kVerifyThreads, stop_, [&](std::size_t i) {
      const RecordCrc& record = opened_.records[i];
      CheckRecord(record.file, record.begin, record.end, record.crc, "");
      return Status::Ok();
    });
    CheckFiles();
    VARVE_RETURN_IF_ERROR(
        CheckStop(stop_));  // Before what a stopped check calls damage is reported.
    CheckSideFiles();
    FindStaleFiles();
    LookForIndex();
    if (of_torch_ > 0) {
      report_.notes.push_back(std::to_string(of_torch_) +
                              " chunks are tensors of classes that only torch can read");
    }
    if (without_checksum_ > 0) {
      report_.notes.push_back(std::to_string(without_checksum_) +
                              " bytes carry no checksum: damage in them cannot be seen");
    }
    std::sort(report_.damages.begin(), report_.damages.end(), [](const Damage& a, const Damage& b) {
      return std::tie(a.file, a.begin, a.problem) < std::tie(b.file, b.begin, b.problem);
    });
    report_.bytes_checked = checked_;
    return std::move(report_);
  }

 private:
  void Add(const Extent& extent, const std::string& fqn, std::string problem) {
    Add(extent, fqn.empty() ? std::vector<std::string>{} : std::vector{fqn}, std::move(problem));
  }

  void Add(const Extent& extent, std::vector<std::string> names, std::string problem) {
    const std::scoped_lock lock(mutex_);
    report_.damages.push_back({opened_.metadata.files[extent.file].name, extent.begin, extent.end,
                               std::move(names), std::move(problem)});
  }

  void CheckCoverage() {
    for (const TensorMetadata& tensor : opened_.metadata.tensors) {
      const LoadItem whole{tensor.fqn, tensor.dtype, tensor.shape, WholeBox(tensor.shape)};
      if (const auto plan = PlanLoad(opened_.metadata, {whole}); !plan.ok()) {
        report_.damages.push_back({"", 0, 0, {tensor.fqn}, plan.status().message()});
      }
    }
  }

  [[nodiscard]] std::vector<Item> Items() const {
    std::vector<Item> items;
    const auto is_there = [&](const Extent& extent) {  // What is not was reported when it opened.
      return extent.end <= opened_.metadata.files[extent.file].size;
    };
    for (const TensorMetadata& tensor : opened_.metadata.tensors) {
      for (std::uint32_t i = 0; i < tensor.chunks.size(); ++i) {
        if (is_there(tensor.chunks[i].extent)) {
          items.push_back({&tensor, i, tensor.fqn, tensor.chunks[i].extent});
        }
      }
    }
    for (const ObjectMetadata& object : opened_.metadata.objects) {
      if (object.extent.encoding != Encoding::kInline && is_there(object.extent)) {
        items.push_back({nullptr, 0, object.fqn, object.extent});
      }
    }
    return items;
  }

  void CheckItem(const Item& item) {
    auto file = files_.Open(item.extent.file);
    if (!file.ok()) {
      Add(item.extent, item.fqn, file.status().message());
      return;
    }
    if (item.extent.encoding == Encoding::kPlain) {
      CountPlain(item.extent);
      return;
    }
    if (item.tensor != nullptr && !IsEmpty(item.tensor->chunks[item.chunk].box)) {
      const Status status = CheckTensor(*item.tensor, item.tensor->chunks[item.chunk], **file);
      if (status.code() == StatusCode::kUnimplemented) {
        const std::scoped_lock lock(mutex_);
        ++of_torch_;  // Its bytes are checked all the same.
      } else if (!status.ok()) {
        Add(item.extent, item.fqn, status.message());
        return;
      }
    }
    if (item.extent.encoding == Encoding::kTorchItem) {
      CheckArchive(item);
    } else {
      Advance(item.extent.end - item.extent.begin);  // Unpacking it has checked it.
    }
    if (item.tensor == nullptr) {
      CheckValue(item, **file);
    }
  }

  /// Checks the archive itself, also where the index has its content: PyTorch reads the archive.
  static Status CheckTensor(const TensorMetadata& tensor, const Chunk& chunk, ReadableFile& file) {
    Chunk unknown = chunk;
    unknown.payload = 0;
    VARVE_ASSIGN_OR_RETURN(const ChunkSource found, ResolveChunk(tensor, unknown, file));
    VARVE_ASSIGN_OR_RETURN(const ChunkSource known, ResolveChunk(tensor, chunk, file));
    if (chunk.payload > 0 &&
        (found.extent != known.extent || !found.strides.empty() || found.conj || found.neg)) {
      return DataLoss("the elements begin at " + std::to_string(found.extent.begin) +
                      ", the index promises them at " + std::to_string(known.extent.begin));
    }
    return Status::Ok();
  }

  /// Checks the files that have checksums of blocks: those that Varve wrote, whatever their format.
  void CheckFiles() {
    for (std::uint32_t number = 0;
         number < opened_.metadata.files.size() && !stop_.stop_requested(); ++number) {
      const DataFile& file = opened_.metadata.files[number];
      if (file.block_crc32c.empty() || !files_.Open(number).ok()) {
        continue;  // A file that cannot be opened was reported with its items.
      }
      const FileReads reads = files_.Reads(number);
      const Status read = CheckBlocks(
          *reads.file, reads.geometry, file.block_crc32c, BufferPool::Shared(), kVerifyThreads,
          [&](ByteRange range, std::uint32_t want, std::uint32_t got) {
            Add({number, range.begin, range.end},
                NamesIn(opened_.metadata, number, range.begin, range.end),
                "checksum mismatch (want " + HexU32(want) + ", got " + HexU32(got) + ")");
          },
          [&](std::uint64_t bytes) { Advance(bytes); }, stop_);
      if (!read.ok()) {
        Add({number, 0, file.size}, NamesIn(opened_.metadata, number, 0, file.size),
            read.message());
      }
    }
  }

  [[nodiscard]] bool HasSums(const Extent& extent) const {
    return !opened_.metadata.files[extent.file].block_crc32c.empty();
  }

  /// Counts elements that have no archive around them; opened_.records or blocks check them, where
  /// there are checksums of either kind.
  void CountPlain(const Extent& extent) {
    if (HasSums(extent)) {
      return;
    }
    if (opened_.records.empty()) {
      without_checksum_ += extent.end - extent.begin;
    }
    Advance(extent.end - extent.begin);
  }

  void CheckArchive(const Item& item) {
    const RangeReader read = [&](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
      VARVE_ASSIGN_OR_RETURN(ReadableFile * file, files_.Open(item.extent.file));
      std::string bytes(size, '\0');
      VARVE_RETURN_IF_ERROR(
          file->ReadAt(item.extent.begin + begin,
                       std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
      return bytes;
    };
    const std::uint64_t size = item.extent.end - item.extent.begin;
    const auto records = ReadZipDirectory(size, read);
    if (!records.ok()) {
      Add(item.extent, item.fqn, records.status().message());
      return;
    }
    for (const ZipRecord& record : *records) {
      const auto content = FindRecordContent(record, size, read);
      if (!content.ok()) {
        Add(item.extent, item.fqn, content.status().message());
        continue;
      }
      if (record.crc32 == 0 && record.size > 0) {
        if (HasSums(item.extent)) {
          continue;
        }
        without_checksum_ += record.size;
      } else {
        const std::uint64_t begin = item.extent.begin + *content;
        CheckRecord(item.extent.file, begin, begin + record.size, record.crc32, item.fqn);
      }
    }
  }

  void CheckRecord(std::uint32_t number, std::uint64_t begin, std::uint64_t end, std::uint32_t want,
                   const std::string& fqn) {
    const Extent extent{number, begin, end};
    const auto got = SumOf(extent);
    if (!got.ok()) {
      Add(extent, fqn, got.status().message());
    } else if (*got != want) {
      Add(extent, fqn, "checksum mismatch (want " + HexU32(want) + ", got " + HexU32(*got) + ")");
    }
  }

  Result<std::uint32_t> SumOf(const Extent& extent) {
    VARVE_ASSIGN_OR_RETURN(ReadableFile * file, files_.Open(extent.file));
    VARVE_ASSIGN_OR_RETURN(const auto memory, BufferPool::Shared().Acquire());
    std::uint32_t crc = 0;
    for (std::uint64_t at = extent.begin; at < extent.end;) {
      VARVE_RETURN_IF_ERROR(CheckStop(stop_));
      const std::uint64_t size = std::min(extent.end - at, kPoolBlockBytes);
      const std::span<std::byte> bytes(memory.data(), size);
      VARVE_RETURN_IF_ERROR(file->ReadAt(at, bytes));
      crc = Crc32ZipExtend(crc, bytes);
      at += size;
      Advance(size);
    }
    return crc;
  }

  void CheckValue(const Item& item, ReadableFile& file) {
    std::string bytes(item.extent.end - item.extent.begin, '\0');
    Status status = file.ReadAt(item.extent.begin,
                                std::as_writable_bytes(std::span(bytes.data(), bytes.size())));
    if (status.ok() && item.extent.encoding == Encoding::kZstdTorchItem) {
      auto archive = DecompressArchive(bytes, kMaxObjectBytes);
      status = archive.status();
      bytes = archive.ok() ? std::move(*archive) : std::string();
    }
    if (status.ok()) {
      status = ReadValueItem(bytes).status();
    }
    if (!status.ok()) {
      Add(item.extent, item.fqn, status.message());
    }
  }

  void CheckSideFiles() {
    for (const StoredFile& file : opened_.metadata.side_files) {
      if (const auto read = ReadSideFile(storage_, opened_.side_home(), file); !read.ok()) {
        report_.damages.push_back({file.name, 0, file.size, {}, read.status().message()});
      }
      checked_ += file.size;
    }
  }

  /// A folder that Varve has written opens without its index; Hugging Face's tools need it.
  void LookForIndex() {
    const bool is_hf = opened_.metadata.format == Format::kSafetensors;
    if (is_hf && opened_.metadata.block_bytes > 0 && opened_.metadata.files.size() > 1 &&
        !storage_.OpenForRead(JoinPath(opened_.directory, kHfIndexName)).ok()) {
      report_.notes.push_back(std::string(kHfIndexName) +
                              " is missing, which Hugging Face's tools need: `varve convert` to a "
                              "folder with --to hf writes it anew");
    }
  }

  /// Finds data files that the checkpoint's index does not name.
  void FindStaleFiles() {
    if (opened_.metadata.format != Format::kDcp) {
      return;
    }
    std::set<std::string> named;
    for (const DataFile& file : opened_.metadata.files) {
      named.insert(file.name);
    }
    const auto entries = storage_.List(opened_.directory);
    for (const DirectoryEntry& entry : entries.ok() ? *entries : std::vector<DirectoryEntry>{}) {
      if (entry.name.ends_with(".distcp") && entry.size > 0 && !named.contains(entry.name)) {
        report_.notes.push_back(entry.name + " belongs to no tensor of this checkpoint");
      }
    }
  }

  void Advance(std::uint64_t bytes) {
    const std::uint64_t done = checked_ += bytes;
    if (progress_) {
      progress_(std::min(done, total_), total_);
    }
  }

  Storage& storage_;
  const OpenedIndex& opened_;
  CheckpointFiles files_;
  const ProgressFunction& progress_;
  const std::stop_token& stop_;
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> checked_{0};
  std::atomic<std::uint64_t> without_checksum_{0};
  std::size_t of_torch_ = 0;  ///< Chunks that only torch can read. Guarded by mutex_.
  std::mutex mutex_;          // Guards report_ while threads run.
  VerifyReport report_;
};

}  // namespace

std::vector<std::string> NamesIn(const Metadata& metadata, std::uint32_t file, std::uint64_t begin,
                                 std::uint64_t end) {
  const auto overlaps = [&](const Extent& extent) {
    return extent.file == file && extent.begin < end && extent.end > begin;
  };
  std::vector<std::string> names;
  for (const TensorMetadata& tensor : metadata.tensors) {
    if (std::any_of(tensor.chunks.begin(), tensor.chunks.end(),
                    [&](const Chunk& chunk) { return overlaps(chunk.extent); })) {
      names.push_back(tensor.fqn);
    }
  }
  for (const TensorVariant& variant : metadata.tensor_variants) {
    if (std::any_of(variant.chunks.begin(), variant.chunks.end(),
                    [&](const Chunk& chunk) { return overlaps(chunk.extent); })) {
      names.push_back(variant.fqn);
    }
  }
  for (const ObjectMetadata& object : metadata.objects) {
    if (overlaps(object.extent)) {
      names.push_back(object.fqn);
    }
  }
  for (const ObjectVariant& variant : metadata.object_variants) {
    if (overlaps(variant.extent)) {
      names.push_back(variant.fqn);
    }
  }
  return names;
}

Result<VerifyReport> VerifyForeign(Storage& storage, const OpenedIndex& opened,
                                   const ProgressFunction& progress, const std::stop_token& stop,
                                   std::vector<Damage> damages) {
  return ForeignVerifier(storage, opened, progress, stop, std::move(damages)).Run();
}

}  // namespace varve
