// The parts of hfai.checkpoint: a file of torch.save for each rank, and no index.
//
// A rank's State is not named entries here but its part. It has one value, named as the part's
// file: the whole dict, in which a kTensorLeaf stands for a tensor, its text the number in
// State::tensors. The caller has split the state (python/varve/hfai); tensors of different parts
// have different names, so that settling leaves every rank all of its own. Tied tensors of one part
// are stored once, as torch.save stores them.

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "interop/hfai/names.h"
#include "pipeline/device_fetch.h"
#include "save/state_file.h"
#include "save/tensor_source.h"
#include "save/written_format.h"
#include "tensor/box.h"
#include "tensor/region.h"
#include "varve/value.h"

namespace varve {
namespace {

/// Checks that each rank has one part and keeps all of it.
Status CheckHfaiParts(const SettledSave& settled) {
  if (settled.one_writer && !settled.side_files.empty()) {
    return InvalidArgument("files: parts of hfai have none beside them in an object store");
  }
  for (std::size_t rank = 0; rank < settled.plans.size(); ++rank) {
    const LocalPlan& plan = settled.plans[rank];
    const std::string name = HfaiPartName(rank);
    if (plan.objects.size() != 1 || plan.objects[0].fqn != name) {
      return InvalidArgument("rank " + std::to_string(rank) + " has no part \"" + name +
                             "\": saves in this format are made by varve.hfai.save");
    }
    const RankAssignment& mine = settled.settled.ranks[rank];
    std::size_t empty = 0;
    for (const PlannedTensor& tensor : plan.tensors) {
      empty += IsEmpty(tensor.box) ? 1U : 0U;
    }
    if (mine.chunks.size() + mine.aliases.size() + empty < plan.tensors.size()) {
      return InvalidArgument("tensors of rank " + std::to_string(rank) +
                             " have names that tensors of another rank have too");
    }
  }
  return Status::Ok();
}

/// Copies elements out of memory.
ProduceFunction BytesOf(const SourceTensor& tensor) {
  if (IsEmpty(tensor.box)) {
    return [](std::uint64_t, std::span<std::byte>) { return Status::Ok(); };
  }
  const Region region(tensor.box, MemoryOf(tensor.source, tensor.dtype, tensor.box), tensor.box);
  return [region, device = DeviceOf(tensor.source)](std::uint64_t at, std::span<std::byte> out) {
    if (device) {
      return CopyFromDevice(region, *device, at, out);
    }
    region.CopyFromMemory(at, out);
    return Status::Ok();
  };
}

/// The tensors of a part, each stored once.
class PartTensors {
 public:
  Status Add(const State& state, const SettledSave& settled) {
    std::map<std::uint32_t, std::uint32_t> tied;
    for (const std::uint32_t alias : settled.assignment().aliases) {
      tied[alias] = *settled.plan().tensors[alias].tied_to;
    }
    for (std::uint32_t i = 0; i < state.tensors.size(); ++i) {
      numbers_.push_back(tensors_.size());
      if (tied.contains(i)) {
        continue;
      }
      const SourceTensor& tensor = state.tensors[i];
      Status status = CheckSource(tensor.source, tensor.box);
      if (status.ok() && IsProduced(tensor.source)) {
        status = InvalidArgument("it is not in memory");
      }
      if (!status.ok()) {
        return status.Annotate("tensor \"" + tensor.fqn + "\"");
      }
      const std::optional<int> device = DeviceOf(tensor.source);
      tensors_.push_back({{tensor.dtype, tensor.box.sizes},
                          BytesOf(tensor),
                          device ? 0 : kMemoryStepBytes,
                          device});
      names_.push_back(tensor.fqn);
    }
    for (const auto& [alias, of] : tied) {
      numbers_[alias] = numbers_[of];
    }
    return Status::Ok();
  }

  /// Puts the numbers of stored tensors into the leaves. DecodeValue has bounded the depth.
  Status Renumber(Value* value) const {  // NOLINT(misc-no-recursion)
    if (value->kind == ValueKind::kTensorLeaf) {
      std::size_t number = 0;
      const std::string& text = value->text;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc{} || end != text.data() + text.size() || number >= numbers_.size()) {
        return InvalidArgument("the part has a leaf \"" + text + "\" that stands for no tensor");
      }
      value->text = std::to_string(numbers_[number]);
      return Status::Ok();
    }
    for (Value& item : value->items) {
      VARVE_RETURN_IF_ERROR(Renumber(&item));
    }
    return Status::Ok();
  }

  std::vector<StateFileTensor> Take() { return std::move(tensors_); }
  std::vector<std::string> TakeNames() { return std::move(names_); }

 private:
  std::vector<StateFileTensor> tensors_;
  std::vector<std::string> names_;
  std::vector<std::size_t> numbers_;  // By the number in State::tensors.
};

Result<RankFile> LayOutHfaiPart(const State* state, const SettledSave& settled) {
  if (state == nullptr) {
    return Unimplemented("parts of hfai are written by the process that has the tensors");
  }
  VARVE_ASSIGN_OR_RETURN(Value part, DecodeValue(state->objects.at(0).encoded));
  PartTensors tensors;
  VARVE_RETURN_IF_ERROR(tensors.Add(*state, settled));
  VARVE_RETURN_IF_ERROR(tensors.Renumber(&part));
  auto names = std::make_shared<std::vector<std::string>>(tensors.TakeNames());
  VARVE_ASSIGN_OR_RETURN(std::shared_ptr<StateFile> laid_out,
                         StateFile::LayOut(part, tensors.Take()));
  RankFile file;
  file.name = HfaiPartName(settled.identity.rank);
  file.work.size = laid_out->size();
  file.work.block_bytes = settled.identity.block_bytes;
  file.work.segments = laid_out->segments();
  file.work.name_of = [names](std::uint32_t owner) { return (*names)[owner]; };
  file.work.finish = [size = file.work.size](const WrittenSegments&) -> Result<FinishedFile> {
    return FinishedFile{{}, EncodeFields(size)};
  };
  file.work.keep = std::move(laid_out);
  return file;
}

Result<CheckpointIndex> MakeHfaiIndex(const SettledSave& /*settled*/,
                                      const std::vector<std::string>& receipts,
                                      const std::string& /*below*/) {
  CheckpointIndex made;
  for (std::size_t rank = 0; rank < receipts.size(); ++rank) {
    DataFile file;
    file.name = HfaiPartName(rank);
    file.rank = static_cast<std::uint32_t>(rank);
    VARVE_ASSIGN_OR_RETURN(file.size, DecodeFields<std::uint64_t>(receipts[rank]));
    made.files.push_back(std::move(file));
  }
  return made;
}

std::vector<std::string> NamesOfParts(const SettledSave& settled) {
  std::vector<std::string> names;
  names.reserve(settled.identity.world_size);
  for (std::size_t rank = 0; rank < settled.identity.world_size; ++rank) {
    names.push_back(HfaiPartName(rank));
  }
  return names;
}

}  // namespace

const WrittenFormat kHfaiFormat{.format = Format::kHfai,
                                .rank_local = false,
                                .holds_variants = false,
                                .check = CheckHfaiParts,
                                .lay_out = LayOutHfaiPart,
                                .names = NamesOfParts,
                                .make_index = MakeHfaiIndex};

}  // namespace varve
