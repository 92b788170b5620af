#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "checkpoint/open.h"
#include "checkpoint/scan.h"
#include "format/data_file.h"
#include "format/structure.h"
#include "pipeline/file_reader.h"
#include "plan/load_plan.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"

namespace varve {

struct CheckpointReader::Impl {
  Impl(Storage& the_storage, OpenedIndex the_index)
      : storage(the_storage), index(std::move(the_index)), files(index.metadata.files.size()) {}

  Storage& storage;
  OpenedIndex index;
  std::mutex mutex;                                  // Guards `files`.
  std::vector<std::unique_ptr<ReadableFile>> files;  // Opened and checked when first needed.

  Result<ReadableFile*> File(std::uint32_t number);
  Result<std::unique_ptr<ReadableFile>> OpenChecked(const DataFile& expected);
  Result<std::vector<std::string>> ReadExtents(const std::vector<Extent>& extents);
  Result<std::uint64_t> Read(std::map<std::uint32_t, FileReads> by_file, std::uint32_t owner_count,
                             const std::function<std::string(std::uint32_t)>& owner_name,
                             const LoadOptions& options);
};

namespace {

/// "3 of 8 targets are partly or wholly overwritten: a, b, c".
std::string DescribeTouched(const std::vector<bool>& touched,
                            const std::function<std::string(std::uint32_t)>& owner_name) {
  constexpr std::size_t kMaxNamed = 20;
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < touched.size(); ++i) {
    if (touched[i] && ++count <= kMaxNamed) {
      names += (names.empty() ? "" : ", ") + owner_name(static_cast<std::uint32_t>(i));
    }
  }
  if (count == 0) {
    return "no target was written to";
  }
  if (count > kMaxNamed) {
    names += " and " + std::to_string(count - kMaxNamed) + " more";
  }
  return "the destination is partly written: " + names;
}

}  // namespace

Result<std::unique_ptr<ReadableFile>> CheckpointReader::Impl::OpenChecked(
    const DataFile& expected) {
  const std::string path = JoinPath(index.directory, expected.name);
  auto file = storage.OpenForRead(path);
  if (!file.ok()) {
    return file.status().code() == StatusCode::kNotFound ? DataLoss(path + " is missing")
                                                         : file.status();
  }
  if ((*file)->size() != expected.size) {
    return DataLoss(path + ": " + std::to_string((*file)->size()) + " bytes instead of " +
                    std::to_string(expected.size));
  }
  // Extents come from the manifest; the header is checked so that no damaged byte goes unnoticed.
  auto header = ReadHeaderBytes(**file);
  Status status = header.status();
  if (header.ok()) {
    status = header->size() != expected.data_begin
                 ? DataLoss("data begins at byte " + std::to_string(header->size()) +
                            ", the manifest says " + std::to_string(expected.data_begin))
                 : CheckHeader(*header, expected.header_crc32c);
  }
  if (!status.ok()) {
    return status.Annotate(path + " [0, " + std::to_string(expected.data_begin) + ")");
  }
  return file;
}

Result<ReadableFile*> CheckpointReader::Impl::File(std::uint32_t number) {
  const std::scoped_lock lock(mutex);
  if (files[number] == nullptr) {
    auto file = OpenChecked(index.metadata.files[number]);
    // A file that is open stays readable whatever happens to its name; one that is not may by now
    // be another save's.
    if (file.status().code() == StatusCode::kDataLoss &&
        WasReplaced(storage, index.directory, index.metadata.save_id)) {
      return FailedPrecondition(index.directory +
                                " was overwritten by another save while it was being read; "
                                "open it again");
    }
    VARVE_ASSIGN_OR_RETURN(files[number], std::move(file));
  }
  return files[number].get();
}

Result<std::uint64_t> CheckpointReader::Impl::Read(
    std::map<std::uint32_t, FileReads> by_file, std::uint32_t owner_count,
    const std::function<std::string(std::uint32_t)>& owner_name, const LoadOptions& options) {
  std::vector<FileReads> reads;
  std::uint64_t total = 0;
  for (auto& [number, file_reads] : by_file) {
    const DataFile& file = index.metadata.files[number];
    VARVE_ASSIGN_OR_RETURN(file_reads.file, File(number));
    file_reads.name = JoinPath(index.directory, file.name);
    file_reads.geometry = {file.data_begin, file.size, index.metadata.block_bytes};
    file_reads.block_crc32c = file.block_crc32c;
    for (const ReadTarget& target : file_reads.targets) {
      total += target.region.bytes();
    }
    reads.push_back(std::move(file_reads));
  }
  ReadFilesOptions read_options{.max_gap_bytes = options.max_gap_bytes,
                                .threads = options.io_threads,
                                .owner_name = owner_name,
                                .stop = options.stop};
  std::atomic<std::uint64_t> done{0};
  if (options.progress) {
    read_options.on_read = [&](std::uint64_t bytes) {
      options.progress(std::min(done += bytes, total), total);
    };
  }
  ReadOutcome outcome = ReadFiles(reads, owner_count, BufferPool::Shared(), read_options);
  if (!outcome.status.ok()) {
    return Status(outcome.status.code(),
                  outcome.status.message() + "; " + DescribeTouched(outcome.touched, owner_name));
  }
  return outcome.bytes_read;
}

Result<std::vector<std::string>> CheckpointReader::Impl::ReadExtents(
    const std::vector<Extent>& extents) {
  std::vector<std::string> contents;
  std::map<std::uint32_t, FileReads> by_file;
  contents.reserve(extents.size());
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const std::uint64_t bytes = extents[i].end - extents[i].begin;
    contents.emplace_back(bytes, '\0');
    if (bytes == 0) {
      continue;
    }
    const Box box{{0}, {bytes}};
    by_file[extents[i].file].targets.push_back(
        {extents[i].begin,
         Region(box, {reinterpret_cast<std::byte*>(contents[i].data()), box, {1}, 1}, box),
         static_cast<std::uint32_t>(i)});
  }
  VARVE_RETURN_IF_ERROR(Read(std::move(by_file), static_cast<std::uint32_t>(extents.size()),
                             [](std::uint32_t) { return std::string("plain values"); }, {})
                            .status());
  return contents;
}

CheckpointReader::CheckpointReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointReader::~CheckpointReader() = default;

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& path,
                                                                 Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(OpenedIndex index, OpenIndex(storage, path));
  return std::unique_ptr<CheckpointReader>(
      new CheckpointReader(std::make_unique<Impl>(storage, std::move(index))));
}

const Metadata& CheckpointReader::metadata() const { return impl_->index.metadata; }

const std::string& CheckpointReader::directory() const { return impl_->index.directory; }

Result<Value> CheckpointReader::ReadStructure() {
  VARVE_ASSIGN_OR_RETURN(const auto encoded, impl_->ReadExtents(metadata().structures));
  std::vector<Value> structures;
  for (const std::string& bytes : encoded) {
    auto value = DecodeValue(bytes);
    if (!value.ok()) {
      return value.status().Annotate(directory() + ": structure");
    }
    structures.push_back(std::move(*value));
  }
  if (structures.empty()) {
    return Value{};
  }
  return MergeStructures(structures).Annotate(directory());
}

Result<std::vector<Value>> CheckpointReader::ReadObjects(std::span<const std::string> fqns) {
  std::vector<Extent> extents;
  for (const std::string& fqn : fqns) {
    const ObjectMetadata* object = metadata().FindObject(fqn);
    if (object == nullptr) {
      return NotFound(directory() + ": object \"" + fqn + "\" is not in the checkpoint");
    }
    extents.push_back(object->extent);
  }
  VARVE_ASSIGN_OR_RETURN(const auto encoded, impl_->ReadExtents(extents));
  std::vector<Value> values;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    auto value = DecodeValue(encoded[i]);
    if (!value.ok()) {
      return value.status().Annotate(directory() + ": object \"" + fqns[i] + "\"");
    }
    values.push_back(std::move(*value));
  }
  return values;
}

Result<std::uint64_t> CheckpointReader::ReadTensors(std::span<const TargetTensor> targets,
                                                    const LoadOptions& options) {
  std::vector<LoadItem> items;
  items.reserve(targets.size());
  for (const TargetTensor& target : targets) {
    items.push_back({target.fqn, target.dtype, target.shape, target.box});
  }
  VARVE_ASSIGN_OR_RETURN(const auto reads, PlanLoad(metadata(), items));
  std::map<std::uint32_t, FileReads> by_file;
  for (const ReadItem& read : reads) {
    const TargetTensor& target = targets[read.item];
    const Chunk& chunk = metadata().tensors[read.tensor].chunks[read.chunk];
    if (!target.strides.empty() && target.strides.size() != target.box.sizes.size()) {
      return InvalidArgument("tensor \"" + target.fqn +
                             "\": " + std::to_string(target.strides.size()) + " strides for " +
                             std::to_string(target.box.sizes.size()) + " dimensions");
    }
    const StridedMemory memory{
        static_cast<std::byte*>(target.data), target.box,
        target.strides.empty() ? RowMajorStrides(target.box.sizes) : target.strides,
        ItemSize(target.dtype)};
    by_file[chunk.extent.file].targets.push_back(
        {chunk.extent.begin, Region(chunk.box, memory, read.common), read.item});
  }
  return impl_->Read(
      std::move(by_file), static_cast<std::uint32_t>(targets.size()),
      [&](std::uint32_t i) { return "tensor \"" + targets[i].fqn + "\""; }, options);
}

}  // namespace varve
