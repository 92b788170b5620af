#include "varve/protocol/plan.h"

#include "protocol/fields.h"
#include "tensor/box.h"

namespace varve::protocol {
namespace {

constexpr std::string_view kUnknownType = "an item of an unknown type";

}  // namespace

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, BytesIOWriteData>& data) {
  archive(data.nbytes);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, TensorWriteData>& tensor) {
  archive(tensor.chunk, tensor.properties, tensor.size);
  archive.Check(
      [&] { return CheckBox(tensor.size, tensor.chunk, ItemSize(tensor.properties.dtype)).ok(); },
      "a chunk outside of its tensor");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, WriteItem>& item) {
  archive(item.index);
  archive.Enum(item.type, WriteItemType::kTensor, WriteItemType::kByteIo, kUnknownType);
  archive(item.bytes_io_data, item.tensor_data);
  archive.Check(
      [&] {
        const bool is_bytes = item.type == WriteItemType::kByteIo;
        return item.bytes_io_data.has_value() == is_bytes &&
               item.tensor_data.has_value() != is_bytes;
      },
      "an item that is not what its type says");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, ReadItem>& item) {
  archive.Enum(item.type, LoadItemType::kTensor, LoadItemType::kByteIo, kUnknownType);
  archive(item.dest_index, item.dest_offsets, item.storage_index, item.storage_offsets,
          item.lengths);
  archive.Check(
      [&] {
        return item.dest_offsets.size() == item.lengths.size() &&
               item.storage_offsets.size() == item.lengths.size();
      },
      "offsets and lengths of different dimensions");
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SavePlan>& plan) {
  archive(plan.items, plan.storage_data, plan.planner_data);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, LoadPlan>& plan) {
  archive(plan.items, plan.storage_data, plan.planner_data);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, WriteResult>& result) {
  archive(result.index, result.size_in_bytes, result.storage_data);
}

std::uint64_t ItemBytes(const WriteItem& item) {
  if (item.tensor_data) {
    return Volume(item.tensor_data->chunk.sizes) * ItemSize(item.tensor_data->properties.dtype);
  }
  return item.bytes_io_data ? item.bytes_io_data->nbytes : 0;
}

std::string EncodeSavePlan(const SavePlan& plan) { return EncodeFields(plan); }
Result<SavePlan> DecodeSavePlan(std::string_view bytes) {
  return DecodeFields<SavePlan>(bytes).Annotate("plan");
}

std::string EncodeLoadPlan(const LoadPlan& plan) { return EncodeFields(plan); }
Result<LoadPlan> DecodeLoadPlan(std::string_view bytes) {
  return DecodeFields<LoadPlan>(bytes).Annotate("plan");
}

std::string EncodeWriteResults(const std::vector<WriteResult>& results) {
  return EncodeFields(results);
}
Result<std::vector<WriteResult>> DecodeWriteResults(std::string_view bytes) {
  return DecodeFields<std::vector<WriteResult>>(bytes).Annotate("write results");
}

}  // namespace varve::protocol
