#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include "base/bytes.h"
#include "base/guarded.h"
#include "base/run_threads.h"
#include "base/stop.h"
#include "base/time_source.h"
#include "base/trace.h"
#include "catalogue/chunk_source.h"
#include "catalogue/files.h"
#include "catalogue/formats.h"
#include "catalogue/open.h"
#include "catalogue/read_lock.h"
#include "catalogue/side_files.h"
#include "format/structure.h"
#include "format/variants.h"
#include "interop/torch/archive.h"
#include "load/cast_read.h"
#include "load/chunk_hashes.h"
#include "load/destinations.h"
#include "pipeline/file_reader.h"
#include "plan/load_plan.h"
#include "share/shared_reads.h"
#include "tensor/box.h"
#include "varve/checkpoint.h"
#include "varve/storage.h"

namespace varve {

struct CheckpointReader::Impl {
  enum class Kind { kTensors, kValues };  // Of what is read: they are phases of their own.
  Impl(Storage& storage, OpenedIndex the_index, std::unique_ptr<StorageLock> the_hold = nullptr)
      : index(std::move(the_index)),
        hold(std::move(the_hold)),
        files(storage, index),
        hashes(files),
        sharing(index.metadata, files) {}

  OpenedIndex index;
  std::optional<Metadata> stored;  // With the lowest rank's values, if `index` has another's.
  const std::unique_ptr<StorageLock> hold;  // Keeps the checkpoint from being pruned.
  CheckpointFiles files;
  ChunkHashes hashes;
  SharedReads sharing;
  std::atomic<std::uint64_t> storage_bytes{0};
  std::mutex mutex;  // Guards `phases`.
  std::vector<Phase> phases;

  void Add(const char* name, double seconds, std::uint64_t bytes = 0) {
    const std::scoped_lock lock(mutex);
    (void)Guarded([&] { AddPhase(&phases, {.name = name, .seconds = seconds, .bytes = bytes}); });
  }

  void Add(Kind kind, const ReadOutcome& outcome) {
    if (kind == Kind::kValues) {
      return Add("values", outcome.read_seconds + outcome.verify_seconds + outcome.copy_seconds,
                 outcome.bytes_read);
    }
    Add("read", outcome.read_seconds, outcome.bytes_read);
    Add("verify", outcome.verify_seconds);
    Add("copy", outcome.copy_seconds);
    AddDevice(outcome.device_seconds, outcome.device_bytes);
  }

  /// Adds copies to devices.
  void AddDevice(double seconds, std::uint64_t bytes) {
    if (bytes > 0) {
      Add("device", seconds, bytes);
    }
  }

  Result<std::uint64_t> Read(Kind kind, std::map<std::uint32_t, FileReads> by_file,
                             std::uint32_t owner_count,
                             const std::function<std::string(std::uint32_t)>& owner_name,
                             const LoadOptions& options);
  Result<std::vector<std::string>> ReadExtents(const std::vector<Extent>& extents,
                                               const std::stop_token& stop);
  FileReads& ReadsOf(std::uint32_t number, std::map<std::uint32_t, FileReads>* by_file);
  Result<std::vector<ChunkSource>> Resolve(const std::vector<PlannedRead>& reads, int threads,
                                           const std::stop_token& stop);
};

namespace {

// Most bytes of a compressed plain value; tensors know their size.
constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{1} << 30;

/// Returns "the destination is partly written: a, b, c".
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
  if (count > kMaxNamed) {
    names += " and " + std::to_string(count - kMaxNamed) + " more";
  }
  return count == 0 ? "no target was written to" : "the destination is partly written: " + names;
}

/// Returns the record that holds an extent of a file whose index lists its records.
std::optional<RecordSum> FindRecord(const std::vector<RecordCrc>& records, const Extent& extent) {
  const auto after =
      std::partition_point(records.begin(), records.end(), [&](const RecordCrc& record) {
        return std::tie(record.file, record.begin) <= std::tie(extent.file, extent.begin);
      });
  if (after == records.begin()) {
    return std::nullopt;
  }
  const RecordCrc& record = *std::prev(after);
  return record.file == extent.file && extent.end <= record.end
             ? std::optional(RecordSum{record.begin, record.end, record.crc})
             : std::nullopt;
}

/// Decodes a stored value of any encoding.
Result<Value> DecodeObject(Encoding encoding, std::string_view bytes) {
  switch (encoding) {
    case Encoding::kPlain:
    case Encoding::kInline: return DecodeValue(bytes);
    case Encoding::kTorchItem: return ReadValueItem(bytes);
    case Encoding::kZstdTorchItem: break;
  }
  VARVE_ASSIGN_OR_RETURN(const std::string archive, DecompressArchive(bytes, kMaxObjectBytes));
  return ReadValueItem(archive);
}

}  // namespace

Result<std::uint64_t> CheckpointReader::Impl::Read(
    Kind kind, std::map<std::uint32_t, FileReads> by_file, std::uint32_t owner_count,
    const std::function<std::string(std::uint32_t)>& owner_name, const LoadOptions& options) {
  std::vector<FileReads> reads;
  std::uint64_t total = 0;
  for (auto& [number, file_reads] : by_file) {
    for (const ReadTarget& target : file_reads.targets) {
      total += target.region.bytes();
    }
    reads.push_back(std::move(file_reads));
  }
  ReadFilesOptions read_options{.max_gap_bytes = options.max_gap_bytes,
                                .threads = options.io_threads,
                                .owner_name = owner_name,
                                .on_read = {},
                                .shared_by = {},
                                .order = {},
                                .stop = options.stop};
  std::unique_ptr<SharedReads::GivesUp> gives_up;
  if (kind == Kind::kTensors) {
    gives_up = sharing.Arrange(reads, &read_options);
  }
  std::atomic<std::uint64_t> done{0};
  if (options.progress) {
    read_options.on_read = [&](std::uint64_t bytes) {
      options.progress(std::min(done += bytes, total), total);
    };
  }
  ReadOutcome outcome = ReadFiles(reads, owner_count, BufferPool::Shared(), read_options);
  Add(kind, outcome);
  storage_bytes += read_options.order.delay ? 0 : outcome.storage_bytes;

  if (!outcome.status.ok()) {
    return WithDestination(UnlessReplaced(outcome.status, files.storage(), index),
                           DescribeTouched(outcome.touched, owner_name));
  }
  return outcome.bytes_read;
}

FileReads& CheckpointReader::Impl::ReadsOf(std::uint32_t number,
                                           std::map<std::uint32_t, FileReads>* by_file) {
  auto found = by_file->find(number);
  if (found == by_file->end()) {
    found = by_file->emplace(number, files.Reads(number)).first;
  }
  return found->second;
}

Result<std::vector<std::string>> CheckpointReader::Impl::ReadExtents(
    const std::vector<Extent>& extents, const std::stop_token& stop) {
  std::vector<std::string> contents;
  std::map<std::uint32_t, FileReads> by_file;
  contents.reserve(extents.size());
  LoadOptions options;
  options.stop = stop;
  std::set<std::uint32_t> wanted;
  for (const Extent& extent : extents) {
    if (extent.encoding != Encoding::kInline && extent.end > extent.begin) {
      wanted.insert(extent.file);
    }
  }
  VARVE_RETURN_IF_ERROR(files.OpenAll(wanted, StorageThreads(options.io_threads), stop));
  for (std::size_t i = 0; i < extents.size(); ++i) {
    VARVE_RETURN_IF_ERROR(CheckStop(stop));
    if (extents[i].encoding == Encoding::kInline) {
      contents.push_back(index.inline_values[extents[i].begin]);
      continue;
    }
    const std::uint64_t bytes = extents[i].end - extents[i].begin;
    contents.emplace_back(bytes, '\0');
    if (bytes == 0) {
      continue;
    }
    const Box box{{0}, {bytes}};
    ReadsOf(extents[i].file, &by_file)
        .targets.push_back(
            {extents[i].begin,
             Region(box, {reinterpret_cast<std::byte*>(contents[i].data()), box, {1}, 1}, box),
             static_cast<std::uint32_t>(i)});
  }
  VARVE_RETURN_IF_ERROR(Read(
                            Kind::kValues, std::move(by_file),
                            static_cast<std::uint32_t>(extents.size()),
                            [](std::uint32_t) { return std::string("plain values"); }, options)
                            .status());
  return contents;
}

CheckpointReader::CheckpointReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointReader::~CheckpointReader() = default;

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& path,
                                                                 Storage& storage,
                                                                 const std::stop_token& stop) {
  std::vector<Phase> phases;
  std::optional<PhaseTimer> timer(std::in_place, &phases, "open");
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  VARVE_ASSIGN_OR_RETURN(LockedIndex opened, OpenLocked(storage, where, stop));
  timer.reset();
  auto impl = std::make_unique<Impl>(storage, std::move(opened.index), std::move(opened.lock));
  impl->phases = std::move(phases);
  return std::unique_ptr<CheckpointReader>(new CheckpointReader(std::move(impl)));
}

Result<std::unique_ptr<CheckpointReader>> CheckpointReader::OpenOwnRanks(const std::string& path,
                                                                         std::uint32_t world_size,
                                                                         Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const std::string where, ResolvePath(path, storage));
  AskAnew(storage, where);
  VARVE_ASSIGN_OR_RETURN(OpenedIndex index, OpenKnownOfOwnRanks(storage, where, world_size));
  return std::unique_ptr<CheckpointReader>(
      new CheckpointReader(std::make_unique<Impl>(storage, std::move(index))));
}

std::string CheckpointReader::NeedOf(std::span<const TargetTensor> targets, bool serves) {
  return impl_->sharing.NeedOf(targets, files_directory(), serves);
}

Result<std::vector<std::string>> CheckpointReader::ShareNeeds(
    std::span<const std::string> needs) const {
  return impl_->sharing.ShareNeeds(needs);
}

Status CheckpointReader::BeginSharing(const std::string& sharing) {
  return impl_->sharing.Begin(sharing);
}

void CheckpointReader::EndSharing() { impl_->sharing.End(); }

std::uint64_t CheckpointReader::storage_bytes() const {
  return impl_->storage_bytes + impl_->sharing.storage_bytes();
}

void CheckpointReader::KeepTails(std::uint64_t max_bytes) { impl_->files.KeepTails(max_bytes); }

std::vector<Phase> CheckpointReader::TakePhases() {
  const std::scoped_lock lock(impl_->mutex);
  return std::exchange(impl_->phases, {});
}

std::uint32_t CheckpointReader::format_version() const {
  const bool is_native = metadata().format == Format::kVarve;
  return impl_->index.record ? impl_->index.record->format_version : is_native ? 1 : 0;
}

const Metadata& CheckpointReader::metadata() const { return impl_->index.metadata; }

void CheckpointReader::TakeValuesOf(std::uint32_t rank) {
  Metadata& metadata = impl_->index.metadata;
  if (metadata.tensor_variants.empty() && metadata.object_variants.empty()) {
    return;
  }
  if (!impl_->stored) {
    impl_->stored = metadata;
  }
  metadata = ValuesOfRank(*impl_->stored, rank);
}

Result<TensorMetadata> CheckpointReader::WithHashes(const TensorMetadata& tensor) {
  return metadata().format == Format::kVarve ? impl_->hashes.Added(tensor) : tensor;
}

const std::string& CheckpointReader::directory() const { return impl_->index.home(); }
std::string CheckpointReader::path() const { return PathOf(impl_->index); }
const std::string& CheckpointReader::files_directory() const { return impl_->index.directory; }
const std::vector<std::pair<std::string, std::string>>& CheckpointReader::stored_names() const {
  return impl_->index.stored_names;
}

Result<std::string> CheckpointReader::ReadFile(const std::string& name) {
  for (const StoredFile& file : metadata().side_files) {
    if (file.name == name) {
      return ReadSideFile(impl_->files.storage(), impl_->index.side_home(), file);
    }
  }
  return NotFound(path() + " has no side file \"" + name + "\"");
}

Result<Value> CheckpointReader::ReadStructure(const std::stop_token& stop) {
  if (impl_->index.structure) {
    return *impl_->index.structure;
  }
  VARVE_ASSIGN_OR_RETURN(const auto encoded, impl_->ReadExtents(metadata().structures, stop));
  std::vector<Value> structures;
  for (const std::string& bytes : encoded) {
    auto value = DecodeValue(bytes);
    if (!value.ok()) {
      return value.status().Annotate(path() + ": structure");
    }
    structures.push_back(std::move(*value));
  }
  if (structures.empty()) {
    return Value{};
  }
  return MergeStructures(structures).Annotate(path());
}

Result<std::vector<Value>> CheckpointReader::ReadObjects(std::span<const std::string> fqns,
                                                         const std::stop_token& stop) {
  std::vector<Extent> extents;
  for (const std::string& fqn : fqns) {
    const ObjectMetadata* object = metadata().FindObject(fqn);
    if (object == nullptr) {
      return NotFound(path() + ": object \"" + fqn + "\" is not in the checkpoint");
    }
    extents.push_back(object->extent);
  }
  VARVE_ASSIGN_OR_RETURN(const auto encoded, impl_->ReadExtents(extents, stop));
  std::vector<Value> values;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    auto value = DecodeObject(extents[i].encoding, encoded[i]);
    if (!value.ok()) {
      return value.status().Annotate(path() + ": object \"" + fqns[i] + "\"");
    }
    values.push_back(std::move(*value));
  }
  return values;
}

/// Returns the sources of the chunks that reads need, one per read. A chunk of an archive is looked
/// into once for each read of it, which is once unless a tensor is loaded in parts.
Result<std::vector<ChunkSource>> CheckpointReader::Impl::Resolve(
    const std::vector<PlannedRead>& reads, int threads, const std::stop_token& stop) {
  std::vector<ChunkSource> sources(reads.size());
  const auto resolve = [&](std::size_t i) -> Status {
    const TensorMetadata& tensor = index.metadata.tensors[reads[i].tensor];
    const Chunk chunk = tensor.chunks[reads[i].chunk];
    VARVE_ASSIGN_OR_RETURN(ReadableFile * file, files.Open(chunk.extent.file));
    auto source = ResolveChunk(tensor, chunk, *file);
    if (!source.ok()) {
      const std::string& name = index.metadata.files[chunk.extent.file].name;
      return source.status().Annotate(
          JoinPath(index.directory, name) + " [" + std::to_string(chunk.extent.begin) + ", " +
          std::to_string(chunk.extent.end) + "), tensor \"" + tensor.fqn + "\"");
    }
    sources[i] = std::move(*source);
    if (!sources[i].record) {
      sources[i].record = FindRecord(index.records, sources[i].extent);
    }
    return Status::Ok();
  };
  if (index.metadata.format == Format::kVarve) {
    for (std::size_t i = 0; i < reads.size(); ++i) {  // Plain chunks need no archive.
      sources[i].extent = index.metadata.tensors[reads[i].tensor].chunks[reads[i].chunk].extent;
    }
    return sources;
  }
  VARVE_RETURN_IF_ERROR(RunThreads(reads.size(), threads, stop, resolve));
  return sources;
}

Result<std::uint64_t> CheckpointReader::ReadTensors(std::span<const TargetTensor> targets,
                                                    const LoadOptions& options) {
  VARVE_RETURN_IF_ERROR(AwaitDeviceWork(targets));
  if (options.cast) {
    VARVE_ASSIGN_OR_RETURN(const ReadToDevice read, ReadCasting(*this, targets, options));
    impl_->AddDevice(read.device_seconds, read.device_bytes);
    return read.bytes_read;
  }
  std::vector<LoadItem> items;
  items.reserve(targets.size());
  for (const TargetTensor& target : targets) {
    items.push_back({target.fqn, target.dtype, target.shape, target.box});
  }
  VARVE_ASSIGN_OR_RETURN(const auto reads, PlanLoad(metadata(), items));
  VARVE_ASSIGN_OR_RETURN(const auto sources,
                         impl_->Resolve(reads, StorageThreads(options.io_threads), options.stop));
  // Of a tensor on a device whose stored bytes are not its elements: read apart.
  std::set<std::uint32_t> by_host;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (targets[reads[i].item].cuda && (sources[i].unpacked || sources[i].conj || sources[i].neg)) {
      by_host.insert(reads[i].item);
    }
  }
  std::map<std::uint32_t, FileReads> by_file;
  std::vector<StridedMemory> memories;
  memories.reserve(targets.size());
  for (const TargetTensor& target : targets) {
    VARVE_ASSIGN_OR_RETURN(StridedMemory memory, MemoryOf(target));
    memories.push_back(std::move(memory));
  }
  std::set<std::uint32_t> wanted;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (!sources[i].unpacked && !by_host.contains(reads[i].item)) {
      wanted.insert(metadata().tensors[reads[i].tensor].chunks[reads[i].chunk].extent.file);
    }
  }
  VARVE_RETURN_IF_ERROR(impl_->files.OpenAll(impl_->sharing.FilesToOpen(std::move(wanted)),
                                             StorageThreads(options.io_threads), options.stop));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (sources[i].unpacked || by_host.contains(reads[i].item)) {
      continue;
    }
    VARVE_RETURN_IF_ERROR(CheckStop(options.stop));
    const Chunk chunk = metadata().tensors[reads[i].tensor].chunks[reads[i].chunk];
    FileReads& file = impl_->ReadsOf(chunk.extent.file, &by_file);
    file.targets.push_back(
        {sources[i].extent.begin,
         ChunkRegion(chunk.box, sources[i], memories[reads[i].item], reads[i].common),
         reads[i].item, DeviceOf(targets[reads[i].item])});
    if (sources[i].record) {
      file.records.push_back(*sources[i].record);
      file.records.back().owner = reads[i].item;
    }
  }
  const auto owner_name = [&](std::uint32_t i) { return "tensor \"" + targets[i].fqn + "\""; };
  VARVE_ASSIGN_OR_RETURN(
      std::uint64_t bytes_read,
      impl_->Read(Impl::Kind::kTensors, std::move(by_file),
                  static_cast<std::uint32_t>(targets.size()), owner_name, options));
  for (const std::uint32_t item : by_host) {
    VARVE_ASSIGN_OR_RETURN(const ReadToDevice read, ReadByHost(*this, targets[item], options));
    impl_->AddDevice(read.device_seconds, read.device_bytes);
    bytes_read += read.bytes_read;
  }
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (by_host.contains(reads[i].item)) {
      continue;
    }
    const StridedMemory& memory = memories[reads[i].item];
    if (sources[i].unpacked) {
      const Chunk chunk = metadata().tensors[reads[i].tensor].chunks[reads[i].chunk];
      const Region region = ChunkRegion(chunk.box, sources[i], memory, reads[i].common);
      const auto bytes = AsByteSpan(*sources[i].unpacked);
      const ByteRange part = region.extent();
      region.CopyToMemory(part.begin, bytes.subspan(part.begin, part.end - part.begin));
    }
    VARVE_RETURN_IF_ERROR(ApplySigns(sources[i].conj, sources[i].neg, targets[reads[i].item].dtype,
                                     memory, reads[i].common));
  }
  return bytes_read;
}

}  // namespace varve
