// The plan of a save: the engine's own settling (plan/settle.cc), in DCP's vocabulary. It finds
// parts that no rank holds and entries about which ranks disagree, and spreads replicas by bytes.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "plan/save_plan.h"
#include "protocol/strided.h"
#include "save/tensor_source.h"
#include "tensor/box.h"
#include "varve/protocol/planner.h"

namespace varve::protocol {
namespace {

/// A rank's plan in the engine's form, and the plan's item for each of its items.
struct Translated {
  LocalPlan plan;
  std::vector<std::size_t> tensors;
  std::vector<std::size_t> objects;
};

Result<Translated> Translate(const SavePlan& plan) {
  Translated result;
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const WriteItem& item = plan.items[i];
    if (item.tensor_data) {
      const TensorWriteData& data = *item.tensor_data;
      result.plan.tensors.push_back({item.index.fqn, data.properties.dtype, data.size, data.chunk});
      result.tensors.push_back(i);
    } else if (item.bytes_io_data) {
      result.plan.objects.push_back({item.index.fqn, item.bytes_io_data->nbytes, {}});
      result.objects.push_back(i);
    } else {
      return InvalidArgument(ToString(item.index) + ": an item that is neither tensor nor value");
    }
  }
  result.plan.structure = plan.planner_data;
  VARVE_RETURN_IF_ERROR(CheckLocalPlan(result.plan));
  return result;
}

/// Assigns every shard whole to the lowest rank that holds it, instead of spreading it.
void TakeLowestRanks(const std::vector<LocalPlan>& plans, SettledPlan* settled) {
  // An empty tensor may be held as several empty boxes; one of them is enough.
  std::set<std::tuple<std::string_view, Dims, Dims>> taken;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    auto& chunks = settled->ranks[rank].chunks;
    chunks.clear();
    for (std::size_t i = 0; i < plans[rank].tensors.size(); ++i) {
      const varve::PlannedTensor& item = plans[rank].tensors[i];
      const bool is_empty_tensor = Volume(item.shape()) == 0;
      if (IsEmpty(item.box) && !is_empty_tensor) {
        continue;
      }
      const Box key = is_empty_tensor ? Box() : item.box;
      if (taken.emplace(item.fqn(), key.offsets, key.sizes).second) {
        chunks.push_back({static_cast<std::uint32_t>(i)});
      }
    }
  }
}

WriteItem TensorItem(const std::string& fqn, TensorWriteData data) {
  WriteItem item;
  item.index.fqn = fqn;
  item.index.offset = data.chunk.offsets;
  item.type = data.chunk == WholeBox(data.size) ? WriteItemType::kTensor : WriteItemType::kShard;
  item.tensor_data = std::move(data);
  return item;
}

WriteItem PieceOf(const WriteItem& item, const Box& box) {
  return TensorItem(item.index.fqn, {box, item.tensor_data->properties, item.tensor_data->size});
}

/// Returns the metadata of the plans together. Gives each item its place in the list of chunks.
StateMetadata Describe(std::vector<SavePlan>* plans) {
  StateMetadata metadata;
  for (const SavePlan& plan : *plans) {
    for (const WriteItem& item : plan.items) {
      auto& entry = metadata.state_dict_metadata[item.index.fqn];
      if (!item.tensor_data) {
        entry = BytesStorageMetadata();
        continue;
      }
      auto& tensor = std::get<TensorStorageMetadata>(entry);
      tensor.properties = item.tensor_data->properties;
      tensor.size = item.tensor_data->size;
      tensor.chunks.push_back(item.tensor_data->chunk);
    }
  }
  const auto by_offsets = [](const Box& a, const Box& b) { return a.offsets < b.offsets; };
  for (auto& [fqn, entry] : metadata.state_dict_metadata) {
    if (auto* tensor = std::get_if<TensorStorageMetadata>(&entry)) {
      std::sort(tensor->chunks.begin(), tensor->chunks.end(), by_offsets);
    }
  }
  for (SavePlan& plan : *plans) {
    for (WriteItem& item : plan.items) {
      if (item.tensor_data) {
        const auto& chunks = metadata.FindTensor(item.index.fqn)->chunks;
        const auto at =
            std::lower_bound(chunks.begin(), chunks.end(), item.tensor_data->chunk, by_offsets);
        item.index.index = static_cast<std::uint64_t>(at - chunks.begin());
      }
    }
  }
  return metadata;
}

/// Returns who writes what. A rank on its own writes all that it holds; the parts of tensors that
/// it does not hold are other ranks' affair.
Result<SettledPlan> SettleAs(const SaveRole& role, const std::vector<LocalPlan>& locals) {
  if (role.use_collectives) {
    return Settle(locals);
  }
  SettledPlan settled;
  for (const LocalPlan& local : locals) {
    settled.ranks.push_back(AssignEverything(local));
  }
  return settled;
}

Status CheckTensor(const SourceTensor& tensor) {
  if (IsProduced(tensor.source)) {
    return Unimplemented("is produced, not in memory; plans are made of memory only");
  }
  if (DeviceOf(tensor.source)) {
    return Unimplemented("is on a CUDA device; plans are made of host memory only");
  }
  return CheckSource(tensor.source, tensor.box);
}

}  // namespace

Status DefaultSavePlanner::SetUpPlanner(const State& state,
                                        const std::optional<StorageMeta>& /*storage_meta*/,
                                        const SaveRole& role) {
  state_ = &state;
  role_ = role;
  tensors_.clear();
  objects_.clear();
  for (const SourceTensor& tensor : state.tensors) {
    if (const Status status = CheckTensor(tensor); !status.ok()) {
      return status.Annotate("tensor \"" + tensor.fqn + "\"");
    }
    tensors_.emplace(tensor.fqn, &tensor);
  }
  for (const SourceObject& object : state.objects) {
    objects_.emplace(object.fqn, &object);
  }
  return Status::Ok();
}

Result<SavePlan> DefaultSavePlanner::CreateLocalPlan() {
  SavePlan plan;
  for (const SourceTensor& tensor : state_->tensors) {
    plan.items.push_back(TensorItem(tensor.fqn, {tensor.box, {tensor.dtype}, tensor.shape}));
  }
  for (const SourceObject& object : state_->objects) {
    WriteItem& item = plan.items.emplace_back();
    item.index.fqn = object.fqn;
    item.bytes_io_data = BytesIOWriteData{object.encoded.size()};
  }
  if (options_.flatten_state_dict) {
    plan.planner_data = state_->structure;
  }
  VARVE_RETURN_IF_ERROR(Translate(plan).status());  // For its checks: here they name the rank.
  return plan;
}

Result<GlobalSavePlan> DefaultSavePlanner::CreateGlobalPlan(std::vector<SavePlan> all_plans) {
  std::vector<Translated> translated;
  std::vector<LocalPlan> locals;
  for (std::size_t rank = 0; rank < all_plans.size(); ++rank) {
    auto one = Translate(all_plans[rank]);
    if (!one.ok()) {
      return one.status().Annotate("plan of rank " + std::to_string(rank));
    }
    locals.push_back(std::move(one->plan));
    translated.push_back(std::move(*one));
  }
  VARVE_ASSIGN_OR_RETURN(SettledPlan settled, SettleAs(role_, locals));
  if (options_.dedup_save_to_lowest_rank) {
    TakeLowestRanks(locals, &settled);
  }
  GlobalSavePlan global;
  for (std::size_t rank = 0; rank < all_plans.size(); ++rank) {
    const SavePlan& local = all_plans[rank];
    SavePlan& plan = global.plans.emplace_back();
    plan.storage_data = local.storage_data;
    for (const ChunkAssignment& chunk : settled.ranks[rank].chunks) {
      plan.items.push_back(
          PieceOf(local.items[translated[rank].tensors[chunk.item]], chunk.BoxIn(locals[rank])));
    }
    for (const std::uint32_t object : settled.ranks[rank].objects) {
      plan.items.push_back(local.items[translated[rank].objects[object]]);
    }
  }
  global.metadata = Describe(&global.plans);
  global.metadata.planner_data = std::move(settled.ranks[0].structure);
  return global;
}

Result<ItemData> DefaultSavePlanner::ResolveData(const WriteItem& item) {
  ItemData result;
  if (!item.tensor_data) {
    const auto found = objects_.find(item.index.fqn);
    if (found == objects_.end()) {
      return NotFound(ToString(item.index) + " is not in the state");
    }
    result.bytes = found->second->encoded;
    return result;
  }
  const Box& chunk = item.tensor_data->chunk;
  const auto [begin, end] = tensors_.equal_range(item.index.fqn);
  for (auto at = begin; at != end; ++at) {
    const SourceTensor& source = *at->second;
    if (source.shape == item.tensor_data->size &&
        source.dtype == item.tensor_data->properties.dtype &&
        chunk.sizes.size() == source.box.sizes.size() && Contains(source.box, chunk)) {
      const StridedMemory memory = MemoryOf(source.source, source.dtype, source.box);
      result.strides = memory.strides;
      if (!IsEmpty(chunk)) {
        result.data =
            memory.data + ByteOffset(source.box, memory.strides, chunk.offsets, source.dtype);
      }
      return result;
    }
  }
  return NotFound("tensor \"" + item.index.fqn + "\" " + varve::ToString(chunk) +
                  " is not in the state");
}

}  // namespace varve::protocol
