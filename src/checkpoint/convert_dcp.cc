// To a PyTorch Distributed Checkpoint: one data file of torch.save archives, and `.metadata`.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/bytes.h"
#include "base/checked.h"
#include "checkpoint/commit.h"
#include "checkpoint/convert.h"
#include "checkpoint/data_writer.h"
#include "interop/dcp_checksums.h"
#include "interop/dcp_encode.h"
#include "interop/torch_encode.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;
constexpr const char* kFileName = "__0_0.distcp";

/// Builds the file's segments and its index in one pass.
class DcpFilePlan {
 public:
  Status Add(const SelectedTensor& tensor, ProduceFunction produce) {
    const bool align = tensor.item.bytes() >= kTorchItemAlignment;
    VARVE_ASSIGN_OR_RETURN(
        TensorArchive archive,
        EncodeTensorArchive(tensor.item.dtype, tensor.item.tensor->shape, std::nullopt, align));
    if (align) {
      Literal(Bytes(RoundUp(at_, kTorchItemAlignment) - at_, '\0'));
    }
    const std::uint64_t begin = at_;
    const std::uint64_t payload = archive.head.size();
    Literal(std::move(archive.head));
    segments_.push_back({.bytes = archive.payload_bytes, .produce = std::move(produce)});
    at_ += archive.payload_bytes;
    Literal(std::move(archive.tail));
    TensorMetadata entry;
    entry.fqn = tensor.fqn;
    entry.dtype = tensor.item.dtype;
    entry.shape = tensor.item.tensor->shape;
    Chunk chunk;
    chunk.box = WholeBox(entry.shape);
    chunk.extent = {0, begin, at_, Encoding::kTorchItem};
    entry.chunks.push_back(std::move(chunk));
    tensors_.emplace_back(std::move(entry), payload);
    return Status::Ok();
  }

  Status Add(const SelectedObject& object) {
    VARVE_ASSIGN_OR_RETURN(const Value value, DecodeValue(object.encoded));
    auto archive = EncodeValueArchive(value);
    if (!archive.ok()) {
      return archive.status().Annotate("\"" + object.fqn + "\"");
    }
    const std::uint64_t begin = at_;
    Literal(std::move(*archive));
    objects_.push_back({object.fqn, {0, begin, at_, Encoding::kTorchItem}});
    return Status::Ok();
  }

  /// Once all is added: the segments, and the literals they view.
  [[nodiscard]] std::vector<FileSegment> Segments() const {
    std::vector<FileSegment> segments = segments_;
    for (const auto& [number, bytes] : literals_) {
      segments[number].literal = AsByteSpan(bytes);
    }
    return segments;
  }

  [[nodiscard]] std::uint64_t size() const { return at_; }

  /// Once the file is written.
  Metadata Index(std::vector<std::uint32_t> block_crc32c, PayloadOffsets* payloads) {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto& a, const auto& b) { return a.first.fqn < b.first.fqn; });
    std::sort(objects_.begin(), objects_.end(),
              [](const auto& a, const auto& b) { return a.fqn < b.fqn; });
    Metadata metadata;
    metadata.format = Format::kDcp;
    metadata.world_size = 1;
    metadata.block_bytes = kBlockBytes;
    DataFile file;
    file.name = kFileName;
    file.size = at_;
    file.block_crc32c = std::move(block_crc32c);
    metadata.files.push_back(std::move(file));
    for (auto& [tensor, payload] : tensors_) {
      metadata.tensors.push_back(std::move(tensor));
      payloads->push_back(payload);
    }
    metadata.objects = std::move(objects_);
    return metadata;
  }

 private:
  void Literal(Bytes bytes) {
    if (bytes.empty()) {
      return;
    }
    at_ += bytes.size();
    segments_.push_back({.bytes = bytes.size()});
    literals_.emplace_back(segments_.size() - 1, std::move(bytes));
  }

  std::uint64_t at_ = 0;
  std::vector<FileSegment> segments_;
  std::vector<std::pair<std::size_t, Bytes>> literals_;
  std::vector<std::pair<TensorMetadata, std::uint64_t>> tensors_;
  std::vector<ObjectMetadata> objects_;
};

}  // namespace

Result<ConvertReport> ConvertToDcp(CheckpointReader& reader, const Selection& selection,
                                   const std::string& target, const ConvertOptions& options,
                                   Storage& storage) {
  std::vector<const SelectedTensor*> tensors;
  for (const SelectedTensor& tensor : selection.tensors) {
    tensors.push_back(&tensor);
  }
  VARVE_ASSIGN_OR_RETURN(const SaveId id, RandomSaveId());
  SelectedStream stream(reader, tensors, options, selection.tensor_bytes());
  DcpFilePlan plan;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (Status status = plan.Add(*tensors[i], stream.Bytes(i)); !status.ok()) {
      return status.Annotate("tensor \"" + tensors[i]->fqn + "\"");
    }
  }
  for (const SelectedObject& object : selection.objects) {
    VARVE_RETURN_IF_ERROR(plan.Add(object));
  }
  VARVE_ASSIGN_OR_RETURN(const auto commit, Commit::Begin(storage, target, id, options.overwrite));
  VARVE_ASSIGN_OR_RETURN(
      const auto file,
      storage.OpenForWrite(JoinPath(commit->staging(), kFileName),
                           {.size = plan.size(), .direct = true, .exclusive = true}));
  WriteSegmentsOptions write;
  write.block_bytes = kBlockBytes;
  VARVE_ASSIGN_OR_RETURN(WrittenSegments written,
                         WriteSegments(*file, 0, plan.Segments(), BufferPool::Shared(), write));
  VARVE_RETURN_IF_ERROR(file->Sync(plan.size()));
  PayloadOffsets payloads;
  const Metadata metadata = plan.Index(std::move(written.block_crc32c), &payloads);
  DcpEncodeOptions encode;
  std::optional<Value> structure;
  if (!selection.structure.empty()) {
    VARVE_ASSIGN_OR_RETURN(structure, DecodeValue(selection.structure));
    encode.structure = &*structure;
  }
  encode.attributes = {{std::string(kDcpChecksums), EncodeDcpChecksums(metadata, payloads)}};
  VARVE_ASSIGN_OR_RETURN(const std::string index, EncodeDcpMetadata(metadata, encode));
  VARVE_RETURN_IF_ERROR(commit->Publish(metadata.files, {{".metadata", index}}));
  return ConvertReport{.tensor_count = metadata.tensors.size(),
                       .object_count = metadata.objects.size(),
                       .bytes = plan.size() + index.size(),
                       .skipped = {},
                       .objects_left_out = 0};
}

}  // namespace varve
