#include "varve/protocol/plan.h"

#include <utility>

#include "base/bytes.h"
#include "protocol/codec.h"
#include "tensor/box.h"

namespace varve::protocol {
namespace {

// The least that an item can take, so that a hostile count is noticed before anything is made.
constexpr std::uint64_t kMinItemBytes = 5;
constexpr std::uint64_t kMinResultBytes = 5;

void PutItem(const WriteItem& item, ByteWriter* out) {
  PutIndex(item.index, out);
  out->U8(static_cast<std::uint8_t>(item.type));
  out->U8(item.bytes_io_data ? 1 : 0);
  if (item.bytes_io_data) {
    out->Varint(item.bytes_io_data->nbytes);
  }
  out->U8(item.tensor_data ? 1 : 0);
  if (item.tensor_data) {
    PutBox(item.tensor_data->chunk, out);
    PutDType(item.tensor_data->properties.dtype, out);
    out->VarintList(item.tensor_data->size);
  }
}

WriteItem GetWriteItem(ByteReader* in) {
  WriteItem item;
  item.index = GetIndex(in);
  const std::uint8_t type = in->U8();
  if (type < 1 || type > 3) {
    in->Fail("an item of an unknown type");
    return item;
  }
  item.type = static_cast<WriteItemType>(type);
  if (GetFlag(in)) {
    item.bytes_io_data = BytesIOWriteData{in->Varint()};
  }
  if (GetFlag(in)) {
    TensorWriteData& tensor = item.tensor_data.emplace();
    tensor.chunk = GetBox(in);
    tensor.properties.dtype = GetDType(in);
    in->VarintList(&tensor.size);
    if (!in->failed() &&
        !CheckBox(tensor.size, tensor.chunk, ItemSize(tensor.properties.dtype)).ok()) {
      in->Fail("a chunk outside of its tensor");
    }
  }
  const bool is_bytes = item.type == WriteItemType::kByteIo;
  if (item.bytes_io_data.has_value() != is_bytes || item.tensor_data.has_value() == is_bytes) {
    in->Fail("an item that is not what its type says");
  }
  return item;
}

void PutItem(const ReadItem& item, ByteWriter* out) {
  out->U8(static_cast<std::uint8_t>(item.type));
  PutIndex(item.dest_index, out);
  out->VarintList(item.dest_offsets);
  PutIndex(item.storage_index, out);
  out->VarintList(item.storage_offsets);
  out->VarintList(item.lengths);
}

ReadItem GetReadItem(ByteReader* in) {
  ReadItem item;
  const std::uint8_t type = in->U8();
  if (type < 1 || type > 2) {
    in->Fail("an item of an unknown type");
    return item;
  }
  item.type = static_cast<LoadItemType>(type);
  item.dest_index = GetIndex(in);
  in->VarintList(&item.dest_offsets);
  item.storage_index = GetIndex(in);
  in->VarintList(&item.storage_offsets);
  in->VarintList(&item.lengths);
  if (item.dest_offsets.size() != item.lengths.size() ||
      item.storage_offsets.size() != item.lengths.size()) {
    in->Fail("offsets and lengths of different dimensions");
  }
  return item;
}

template <class Plan>
std::string EncodePlan(const Plan& plan) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(plan.items.size());
  for (const auto& item : plan.items) {
    PutItem(item, &out);
  }
  out.String(plan.storage_data);
  out.String(plan.planner_data);
  return bytes;
}

template <class Plan, class GetItem>
Result<Plan> DecodePlan(std::string_view bytes, const GetItem& get_item) {
  ByteReader in(bytes);
  Plan plan;
  const std::uint64_t count = in.Count(kMinItemBytes);
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    plan.items.push_back(get_item(&in));
  }
  plan.storage_data = in.String();
  plan.planner_data = in.String();
  if (const Status status = in.Finish(); !status.ok()) {
    return status.Annotate("plan");
  }
  return plan;
}

}  // namespace

std::uint64_t ItemBytes(const WriteItem& item) {
  if (item.tensor_data) {
    return Volume(item.tensor_data->chunk.sizes) * ItemSize(item.tensor_data->properties.dtype);
  }
  return item.bytes_io_data ? item.bytes_io_data->nbytes : 0;
}

std::string EncodeSavePlan(const SavePlan& plan) { return EncodePlan(plan); }
Result<SavePlan> DecodeSavePlan(std::string_view bytes) {
  return DecodePlan<SavePlan>(bytes, GetWriteItem);
}

std::string EncodeLoadPlan(const LoadPlan& plan) { return EncodePlan(plan); }
Result<LoadPlan> DecodeLoadPlan(std::string_view bytes) {
  return DecodePlan<LoadPlan>(bytes, GetReadItem);
}

std::string EncodeWriteResults(const std::vector<WriteResult>& results) {
  Bytes bytes;
  ByteWriter out(&bytes);
  out.Varint(results.size());
  for (const WriteResult& result : results) {
    PutIndex(result.index, &out);
    out.Varint(result.size_in_bytes);
    out.String(result.storage_data);
  }
  return bytes;
}

Result<std::vector<WriteResult>> DecodeWriteResults(std::string_view bytes) {
  ByteReader in(bytes);
  std::vector<WriteResult> results;
  const std::uint64_t count = in.Count(kMinResultBytes);
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    WriteResult result;
    result.index = GetIndex(&in);
    result.size_in_bytes = in.Varint();
    result.storage_data = in.String();
    results.push_back(std::move(result));
  }
  if (const Status status = in.Finish(); !status.ok()) {
    return status.Annotate("write results");
  }
  return results;
}

}  // namespace varve::protocol
