#include <cstddef>
#include <utility>

#include "base/checked.h"
#include "tensor/box.h"
#include "varve/protocol/file_system.h"
#include "varve/storage.h"
#include "varve/value.h"

namespace varve::protocol {
namespace {

/// Returns the box of the whole tensor that an item asks for.
Result<Box> BoxOf(const ReadItem& item, const TensorMetadata& stored) {
  Box box{item.storage_index.offset.value_or(Dims()), item.lengths};
  if (box.offsets.size() != item.storage_offsets.size()) {
    return InvalidArgument("an item whose chunk has other dimensions");
  }
  for (std::size_t d = 0; d < box.offsets.size(); ++d) {
    const auto offset = CheckedAdd(box.offsets[d], item.storage_offsets[d]);
    if (!offset) {
      return InvalidArgument("an item whose offsets overflow");
    }
    box.offsets[d] = *offset;
  }
  VARVE_RETURN_IF_ERROR(CheckBox(stored.shape, box, ItemSize(stored.dtype)));
  return box;
}

Result<TargetTensor> TargetOf(const ReadItem& item, const varve::Metadata& metadata,
                              const TensorMemory& memory) {
  const TensorMetadata* stored = metadata.FindTensor(item.storage_index.fqn);
  if (stored == nullptr) {
    return NotFound("is not in the checkpoint");
  }
  TargetTensor target;
  target.fqn = stored->fqn;
  target.dtype = memory.dtype;
  target.shape = stored->shape;
  VARVE_ASSIGN_OR_RETURN(target.box, BoxOf(item, *stored));
  target.data = memory.data;
  target.strides = memory.strides;
  return target;
}

Status ReadValues(const std::vector<const ReadItem*>& items, CheckpointReader& reader,
                  LoadPlanner& planner) {
  std::vector<std::string> fqns;
  fqns.reserve(items.size());
  for (const ReadItem* item : items) {
    fqns.push_back(item->storage_index.fqn);
  }
  VARVE_ASSIGN_OR_RETURN(const std::vector<Value> values, reader.ReadObjects(fqns));
  for (std::size_t i = 0; i < items.size(); ++i) {
    VARVE_RETURN_IF_ERROR(planner.LoadBytes(*items[i], EncodeValue(values[i]))
                              .Annotate(ToString(items[i]->dest_index)));
  }
  return Status::Ok();
}

Status ReadPieces(const std::vector<const ReadItem*>& items, CheckpointReader& reader,
                  const LoadOptions& options, LoadPlanner& planner) {
  std::vector<TensorMemory> memories;
  std::vector<TargetTensor> targets;
  for (const ReadItem* item : items) {
    VARVE_ASSIGN_OR_RETURN(memories.emplace_back(),
                           planner.ResolveTensor(*item).Annotate(ToString(item->dest_index)));
    VARVE_ASSIGN_OR_RETURN(targets.emplace_back(),
                           TargetOf(*item, reader.metadata(), memories.back())
                               .Annotate(ToString(item->storage_index)));
  }
  VARVE_RETURN_IF_ERROR(reader.ReadTensors(targets, options).status());
  for (std::size_t i = 0; i < items.size(); ++i) {
    VARVE_RETURN_IF_ERROR(
        planner.CommitTensor(*items[i], memories[i]).Annotate(ToString(items[i]->dest_index)));
  }
  return Status::Ok();
}

}  // namespace

FileSystemReader::FileSystemReader(std::string path, LoadOptions options, Storage& storage)
    : path_(std::move(path)), options_(std::move(options)), storage_(storage) {
  if (auto resolved = ResolvePath(path_, storage_); resolved.ok()) {
    path_ = std::move(*resolved);  // Else the first use returns the error.
  }
}

Status FileSystemReader::Reset(std::optional<std::string_view> checkpoint_id) {
  reader_.reset();
  if (checkpoint_id) {
    VARVE_ASSIGN_OR_RETURN(path_, ResolvePath(*checkpoint_id, storage_));
  }
  return Status::Ok();
}

Result<StateMetadata> FileSystemReader::ReadMetadata() {
  VARVE_ASSIGN_OR_RETURN(reader_, CheckpointReader::Open(path_, storage_));
  StateMetadata metadata;
  for (const TensorMetadata& tensor : reader_->metadata().tensors) {
    TensorStorageMetadata entry{{tensor.dtype}, tensor.shape, {}};
    for (const Chunk& chunk : tensor.chunks) {
      entry.chunks.push_back(chunk.box);
    }
    metadata.state_dict_metadata.emplace(tensor.fqn, std::move(entry));
  }
  for (const ObjectMetadata& object : reader_->metadata().objects) {
    metadata.state_dict_metadata.emplace(object.fqn, BytesStorageMetadata());
  }
  VARVE_ASSIGN_OR_RETURN(const Value structure, reader_->ReadStructure());
  if (structure.kind != ValueKind::kNone) {
    metadata.planner_data = EncodeValue(structure);
  }
  metadata.storage_meta = StorageMeta();
  metadata.storage_meta->checkpoint_id = path_;
  return metadata;
}

Status FileSystemReader::SetUpStorageReader(const StateMetadata& /*metadata*/,
                                            bool /*is_coordinator*/) {
  return reader_ != nullptr ? Status::Ok()
                            : FailedPrecondition(path_ + ": its metadata has not been read");
}

Status FileSystemReader::ReadData(const LoadPlan& plan, LoadPlanner& planner) {
  std::vector<const ReadItem*> values;
  std::vector<const ReadItem*> pieces;
  for (const ReadItem& item : plan.items) {
    (item.type == LoadItemType::kByteIo ? values : pieces).push_back(&item);
  }
  VARVE_RETURN_IF_ERROR(ReadPieces(pieces, *reader_, options_, planner));
  return ReadValues(values, *reader_, planner);
}

}  // namespace varve::protocol
