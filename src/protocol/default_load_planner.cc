#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "protocol/strided.h"
#include "tensor/box.h"
#include "varve/protocol/planner.h"

namespace varve::protocol {
namespace {

/// Returns "w (stored float32[4], wanted float32[5])".
std::string DescribeMismatch(const TensorStorageMetadata& stored, const TargetTensor& target) {
  return target.fqn + " (stored " + std::string(DTypeName(stored.properties.dtype)) +
         varve::ToString(stored.size) + ", wanted " + std::string(DTypeName(target.dtype)) +
         varve::ToString(target.shape) + ")";
}

/// Names for a message, shortened to a readable number.
class NameList {
 public:
  void Add(const std::string& name) {
    constexpr std::size_t kMaxNamed = 50;
    if (++count_ <= kMaxNamed) {
      text_ += (text_.empty() ? "" : ", ") + name;
    } else if (count_ == kMaxNamed + 1) {
      text_ += ", and more";
    }
  }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

Dims Minus(const Dims& a, const Dims& b) {
  Dims difference(a.size());
  std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
  return difference;
}

/// Adds the parts of `target` that the stored chunks hold, as items. Errors: DataLoss when a part
/// is missing.
Status AddTensorItems(const TensorStorageMetadata& stored, const TargetTensor& target,
                      std::uint64_t target_number, std::vector<ReadItem>* items) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < stored.chunks.size(); ++i) {
    const ChunkStorageMetadata& chunk = stored.chunks[i];
    const auto common = Intersect(chunk, target.box);
    if (!common) {
      continue;
    }
    ReadItem item;
    item.type = LoadItemType::kTensor;
    item.dest_index = {target.fqn, target.box.offsets, target_number};
    item.dest_offsets = Minus(common->offsets, target.box.offsets);
    item.storage_index = {target.fqn, chunk.offsets, i};
    item.storage_offsets = Minus(common->offsets, chunk.offsets);
    item.lengths = common->sizes;
    covered += Volume(common->sizes);
    items->push_back(std::move(item));
  }
  if (!IsEmpty(target.box) && covered != Volume(target.box.sizes)) {
    const std::vector<Box> holes = SubtractAll(target.box, stored.chunks);
    return DataLoss("tensor \"" + target.fqn + "\": " +
                    (holes.empty() ? "stored chunks overlap"
                                   : "no stored chunk holds " + varve::ToString(holes.front())));
  }
  return Status::Ok();
}

Status CheckTarget(const TargetTensor& target) {
  VARVE_RETURN_IF_ERROR(CheckBox(target.shape, target.box, ItemSize(target.dtype)));
  if (!target.strides.empty() && target.strides.size() != target.box.sizes.size()) {
    return InvalidArgument(std::to_string(target.strides.size()) + " strides for " +
                           std::to_string(target.box.sizes.size()) + " dimensions");
  }
  if (target.data == nullptr && !IsEmpty(target.box)) {
    return InvalidArgument("there is no memory to read it to");
  }
  return Status::Ok();
}

}  // namespace

Status DefaultLoadPlanner::SetUpPlanner(TargetState& state, const StateMetadata& metadata,
                                        bool /*is_coordinator*/) {
  state_ = &state;
  metadata_ = &metadata;
  tensors_.clear();
  objects_.clear();
  for (const TargetTensor& target : state.tensors) {
    if (const Status status = CheckTarget(target); !status.ok()) {
      return status.Annotate("tensor \"" + target.fqn + "\"");
    }
    tensors_.emplace(target.fqn, &target);
  }
  for (TargetValue& value : state.objects) {
    if (!objects_.emplace(value.fqn, &value).second) {
      return InvalidArgument("\"" + value.fqn + "\" is asked for twice");
    }
  }
  return Status::Ok();
}

Result<LoadPlan> DefaultLoadPlanner::CreateLocalPlan() {
  LoadPlan plan;
  NameList missing;
  NameList mismatched;
  for (std::size_t i = 0; i < state_->tensors.size(); ++i) {
    const TargetTensor& target = state_->tensors[i];
    const TensorStorageMetadata* stored = metadata_->FindTensor(target.fqn);
    if (stored == nullptr) {
      if (metadata_->HasBytes(target.fqn)) {
        mismatched.Add(target.fqn + " (stored a value, wanted a tensor)");
      } else {
        missing.Add(target.fqn);
      }
    } else if (stored->size != target.shape || stored->properties.dtype != target.dtype) {
      mismatched.Add(DescribeMismatch(*stored, target));
    } else {
      VARVE_RETURN_IF_ERROR(AddTensorItems(*stored, target, i, &plan.items));
    }
  }
  for (const TargetValue& value : state_->objects) {
    if (metadata_->HasBytes(value.fqn)) {
      ReadItem item;
      item.dest_index.fqn = value.fqn;
      item.storage_index.fqn = value.fqn;
      plan.items.push_back(std::move(item));
    } else if (metadata_->FindTensor(value.fqn) != nullptr) {
      mismatched.Add(value.fqn + " (stored a tensor, wanted a value)");
    } else {
      missing.Add(value.fqn);
    }
  }
  if (!mismatched.empty()) {
    return InvalidArgument("the checkpoint has other sizes or types: " + mismatched.text());
  }
  if (!missing.empty() && !options_.allow_partial_load) {
    return NotFound("missing from the checkpoint: " + missing.text() +
                    " (allow_partial_load leaves such things as they are)");
  }
  return plan;
}

Status DefaultLoadPlanner::LoadBytes(const ReadItem& item, std::string_view encoded) {
  const auto found = objects_.find(item.dest_index.fqn);
  if (found == objects_.end()) {
    return NotFound(ToString(item.dest_index) + " is not in the target");
  }
  found->second->encoded = encoded;
  return Status::Ok();
}

Result<TensorMemory> DefaultLoadPlanner::ResolveTensor(const ReadItem& item) {
  const auto fits = [&](const TargetTensor& target) {
    return target.fqn == item.dest_index.fqn && target.box.offsets == item.dest_index.offset;
  };
  const TargetTensor* target = nullptr;
  const auto number = item.dest_index.index;
  if (number && *number < state_->tensors.size() && fits(state_->tensors[*number])) {
    target = &state_->tensors[*number];
  } else {
    const auto [begin, end] = tensors_.equal_range(item.dest_index.fqn);
    const auto at =
        std::find_if(begin, end, [&](const auto& entry) { return fits(*entry.second); });
    target = at == end ? nullptr : at->second;
  }
  if (target == nullptr) {
    return NotFound(ToString(item.dest_index) + " is not in the target");
  }
  if (const Status status =
          CheckBox(target->box.sizes, {item.dest_offsets, item.lengths}, ItemSize(target->dtype));
      !status.ok()) {
    return status.Annotate(ToString(item.dest_index));
  }
  Dims offsets = target->box.offsets;
  std::transform(offsets.begin(), offsets.end(), item.dest_offsets.begin(), offsets.begin(),
                 std::plus<>());
  TensorMemory memory;
  memory.dtype = target->dtype;
  memory.strides = StridesOr(target->strides, target->box.sizes);
  if (target->data != nullptr) {
    memory.data = static_cast<std::byte*>(target->data) +
                  ByteOffset(target->box, memory.strides, offsets, target->dtype);
  }
  return memory;
}

Status DefaultLoadPlanner::CommitTensor(const ReadItem& /*item*/, const TensorMemory& /*memory*/) {
  return Status::Ok();
}

}  // namespace varve::protocol
