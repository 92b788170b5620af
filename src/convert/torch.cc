// To one file of torch.save: the state as it was, containers and all, in one archive.
//
// The payloads' checksums are computed while they pass by: each stands behind its payload, and all
// of them in the zip directory, which is made when the last payload has passed.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "convert/writers.h"
#include "interop/torch/encode.h"
#include "interop/zip/writer.h"

namespace varve {
namespace {

/// Makes the state whole: puts values in the place of their leaves, and into the leaves of tensors
/// the tensors' numbers.
class StateBuilder {
 public:
  explicit StateBuilder(const Selection& selection) {
    for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
      tensors_[selection.tensors[i].fqn] = i;
    }
    for (const SelectedObject& object : selection.objects) {
      objects_[object.fqn] = &object;
    }
  }

  Result<Value> Whole(const Selection& selection) {
    Value state;
    if (selection.structure.empty()) {
      state = Flat();
    } else {
      VARVE_ASSIGN_OR_RETURN(state, DecodeValue(selection.structure));
    }
    VARVE_RETURN_IF_ERROR(Fill("", true, &state));
    return state;
  }

 private:
  /// Returns a dict of names, in their order.
  Value Flat() {
    std::map<std::string_view, ValueKind> leaves;
    for (const auto& [fqn, number] : tensors_) {
      leaves[fqn] = ValueKind::kTensorLeaf;
    }
    for (const auto& [fqn, object] : objects_) {
      leaves[fqn] = ValueKind::kObjectLeaf;
    }
    Value state{.kind = ValueKind::kDict};
    for (const auto& [fqn, kind] : leaves) {
      state.items.push_back(Value::Str(std::string(fqn)));
      state.items.push_back({.kind = kind});
    }
    return state;
  }

  /// DecodeValue has bounded the depth.
  Status Fill(const std::string& name, bool root, Value* value) {  // NOLINT(misc-no-recursion)
    if (value->kind == ValueKind::kTensorLeaf) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) {
        return DataLoss("the structure has a tensor \"" + name + "\" that is not there");
      }
      value->text = std::to_string(found->second);
      return Status::Ok();
    }
    if (value->kind == ValueKind::kObjectLeaf) {
      return FillObject(name, value);
    }
    const bool mapping = IsMapping(value->kind);
    const std::size_t step = mapping ? 2 : 1;
    for (std::size_t i = 0; i + step <= value->items.size(); i += step) {
      const std::string key = mapping ? KeyText(value->items[i]) : std::to_string(i);
      VARVE_RETURN_IF_ERROR(Fill(NameBelow(name, root, key), false, &value->items[i + step - 1]));
    }
    return Status::Ok();
  }

  Status FillObject(const std::string& name, Value* value) {
    const auto found = objects_.find(name);
    if (found == objects_.end()) {
      return DataLoss("the structure has a value \"" + name + "\" that is not there");
    }
    VARVE_ASSIGN_OR_RETURN(*value, DecodeValue(found->second->encoded));
    // Alone, so that the error has its name, and so that a leaf inside a value stands for nothing.
    if (const auto archive = EncodeValueArchive(*value);
        value->kind == ValueKind::kTorchSave || !archive.ok()) {
      const Status status =
          archive.ok() ? Unimplemented("it is an archive of its own") : archive.status();
      return status.Annotate("\"" + name + "\", which --exclude would leave out");
    }
    return Status::Ok();
  }

  std::map<std::string, std::size_t, std::less<>> tensors_;
  std::map<std::string, const SelectedObject*, std::less<>> objects_;
};

/// The zip directory, made once all payloads have passed.
class LateTail {
 public:
  LateTail(const Value& state, const std::vector<StateTensor>& tensors)
      : state_(state), tensors_(tensors), crcs_(tensors.size()) {}

  ProduceFunction Summed(std::size_t tensor, ProduceFunction bytes) {
    return [this, tensor, bytes = std::move(bytes)](std::uint64_t at, std::span<std::byte> out) {
      VARVE_RETURN_IF_ERROR(bytes(at, out));
      crcs_[tensor] = Crc32ZipExtend(crcs_[tensor], out);
      return Status::Ok();
    };
  }

  /// Returns the descriptor behind the bytes of a tensor.
  ProduceFunction Descriptor(std::size_t tensor, std::uint64_t bytes) {
    return [this, tensor, bytes](std::uint64_t at, std::span<std::byte> out) {
      const Bytes descriptor = ZipDescriptor(crcs_[tensor], bytes);
      std::memcpy(out.data(), descriptor.data() + at, out.size());
      return Status::Ok();
    };
  }

  ProduceFunction Tail() {
    return [this](std::uint64_t at, std::span<std::byte> out) {
      if (tail_.empty()) {
        VARVE_ASSIGN_OR_RETURN(StateArchive archive, EncodeStateArchive(state_, tensors_, crcs_));
        tail_ = std::move(archive.tail);
      }
      std::memcpy(out.data(), tail_.data() + at, out.size());
      return Status::Ok();
    };
  }

 private:
  const Value& state_;
  const std::vector<StateTensor>& tensors_;
  std::vector<std::uint32_t> crcs_;
  Bytes tail_;
};

}  // namespace

Result<ConvertReport> ConvertToTorch(CheckpointReader& reader, const Selection& selection,
                                     const std::string& target, const ConvertOptions& options,
                                     Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const Value state, StateBuilder(selection).Whole(selection));
  std::vector<StateTensor> tensors;
  std::vector<const SelectedTensor*> order;
  for (const SelectedTensor& tensor : selection.tensors) {
    tensors.push_back({tensor.item.dtype, tensor.item.tensor->shape});
    order.push_back(&tensor);
  }
  VARVE_ASSIGN_OR_RETURN(const StateArchive archive, EncodeStateArchive(state, tensors, {}));
  SelectedStream stream(reader, order, options, selection.tensor_bytes());
  LateTail late(state, tensors);
  std::vector<FileSegment> segments;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Bytes& head = archive.heads[i];
    segments.push_back({.bytes = head.size(), .literal = AsByteSpan(head)});
    const std::uint64_t bytes = order[i]->item.bytes();
    if (bytes > 0) {
      segments.push_back({.bytes = bytes, .produce = late.Summed(i, stream.Bytes(i))});
    }
    segments.push_back(
        {.bytes = ZipDescriptor(0, bytes).size(), .produce = late.Descriptor(i, bytes)});
  }
  if (order.empty()) {
    segments.push_back({.bytes = archive.tail.size(), .literal = AsByteSpan(archive.tail)});
  } else {
    segments.push_back({.bytes = archive.tail.size(), .produce = late.Tail()});
  }
  ConvertReport report;
  VARVE_ASSIGN_OR_RETURN(report.bytes, PublishFile(storage, target, options, segments));
  report.tensor_count = selection.tensors.size();
  report.object_count = selection.objects.size();
  report.files_left_out = reader.metadata().side_files.size();
  return report;
}

}  // namespace varve
