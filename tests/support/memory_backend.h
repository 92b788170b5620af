/// A backend as a user might write it, for tests: checkpoints in a map. On request it has a flaw,
/// for the conformance suite to find.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "varve/protocol/storage_layer.h"

namespace varve::protocol::test {

enum class Flaw : std::uint8_t {
  kNone,
  kLosesValues,         // Reports a value as written and does not store it.
  kLosesAResult,        // Does not report its last item.
  kIgnoresPlanner,      // Goes on when ResolveData fails.
  kIgnoresStorage,      // Goes on when the storage is broken.
  kShowsEarly,          // Written items are visible at once.
  kWritesInPlace,       // Overwrites the previous checkpoint while it writes.
  kKeepsTheOld,         // Names of a replaced checkpoint stay.
  kForgetsOffsets,      // Reads every part from the beginning of its chunk.
  kForgetsPlannerData,  // Stores names only.
  kIgnoresReadPlanner,  // Goes on when the LoadPlanner refuses.
  kCommitsTwice,
  kLetsGoTooEarly,  // Reads content after its owner was destroyed.
  kMissingIsEmpty,  // Gives empty metadata where there is no checkpoint.
};

using Items = std::map<MetadataIndex, std::string>;

/// The checkpoints that the writers and readers of a test share.
struct Store {
  std::mutex mutex;  // Of all that follows.
  bool broken = false;
  std::map<std::string, Items> staged;
  std::map<std::string, std::pair<std::string, Items>> finished;  // Encoded metadata, items.
};

class MemoryWriter : public StorageWriter {
 public:
  explicit MemoryWriter(Store& store, Flaw flaw = Flaw::kNone) : store_(store), flaw_(flaw) {}

  Status Reset(std::optional<std::string_view> checkpoint_id) override {
    id_ = checkpoint_id.value_or(id_);
    return Status::Ok();
  }
  Status SetUpStorageWriter(const SaveRole& /*role*/) override { return Status::Ok(); }

  Result<std::vector<SavePlan>> PrepareGlobalPlan(std::vector<SavePlan> plans) override {
    const std::lock_guard lock(store_.mutex);
    store_.staged[id_].clear();
    return plans;
  }

  Result<std::vector<WriteResult>> WriteData(const SavePlan& plan, SavePlanner& planner) override {
    std::vector<WriteResult> results;
    for (const WriteItem& item : plan.items) {
      auto data = planner.ResolveData(item);
      if (!data.ok()) {
        if (flaw_ != Flaw::kIgnoresPlanner) {
          return data.status();
        }
        data = ItemData();
      }
      if (flaw_ == Flaw::kLetsGoTooEarly) {
        data->owner.reset();
      }
      const bool has_content = data->data != nullptr || !item.tensor_data;
      VARVE_RETURN_IF_ERROR(Put(item, has_content ? ContentOf(item, *data) : ""));
      results.push_back({item.index, ItemBytes(item), ""});
    }
    if (flaw_ == Flaw::kLosesAResult && !results.empty()) {
      results.pop_back();
    }
    return results;
  }

  Status Finish(const StateMetadata& metadata,
                const std::vector<std::vector<WriteResult>>& /*results*/) override {
    const std::lock_guard lock(store_.mutex);
    if (store_.broken && flaw_ != Flaw::kIgnoresStorage) {
      return Unavailable("the store is broken");
    }
    auto& [encoded, items] = store_.finished[id_];
    StateMetadata stored = metadata;
    if (flaw_ == Flaw::kForgetsPlannerData) {
      stored.planner_data.clear();
    }
    if (flaw_ == Flaw::kKeepsTheOld && !encoded.empty()) {
      stored.state_dict_metadata.merge(DecodeMetadata(encoded)->state_dict_metadata);
    }
    encoded = EncodeMetadata(stored);
    if (flaw_ != Flaw::kWritesInPlace) {
      items = std::move(store_.staged[id_]);
    }
    store_.staged.erase(id_);
    return Status::Ok();
  }

  void Abandon() override {
    const std::lock_guard lock(store_.mutex);
    store_.staged.erase(id_);
  }

 private:
  Status Put(const WriteItem& item, std::string content) {
    const std::lock_guard lock(store_.mutex);
    if (store_.broken) {
      return flaw_ == Flaw::kIgnoresStorage ? Status::Ok() : Unavailable("the store is broken");
    }
    if (flaw_ == Flaw::kLosesValues && item.type == WriteItemType::kByteIo) {
      return Status::Ok();
    }
    if (flaw_ == Flaw::kShowsEarly && !store_.finished.contains(id_)) {
      store_.finished[id_].first = EncodeMetadata({});
    }
    Items& items = flaw_ == Flaw::kWritesInPlace ? store_.finished[id_].second : store_.staged[id_];
    items[item.index] = std::move(content);
    return Status::Ok();
  }

  Store& store_;
  Flaw flaw_;
  std::string id_;
};

class MemoryReader : public StorageReader {
 public:
  explicit MemoryReader(Store& store, Flaw flaw = Flaw::kNone) : store_(store), flaw_(flaw) {}

  Status Reset(std::optional<std::string_view> checkpoint_id) override {
    id_ = checkpoint_id.value_or(id_);
    return Status::Ok();
  }

  Result<StateMetadata> ReadMetadata() override {
    const std::lock_guard lock(store_.mutex);
    const auto found = store_.finished.find(id_);
    if (found == store_.finished.end() || found->second.first.empty()) {
      return flaw_ == Flaw::kMissingIsEmpty ? Result<StateMetadata>(StateMetadata())
                                            : NotFound("no checkpoint " + id_);
    }
    return DecodeMetadata(found->second.first);
  }

  Status SetUpStorageReader(const StateMetadata& metadata, bool /*is_coordinator*/) override {
    metadata_ = metadata;
    return Status::Ok();
  }

  Status ReadData(const LoadPlan& plan, LoadPlanner& planner) override {
    const std::lock_guard lock(store_.mutex);
    const Items& items = store_.finished[id_].second;
    for (const ReadItem& item : plan.items) {
      const auto found = items.find(item.storage_index);
      if (found == items.end()) {
        return DataLoss(ToString(item.storage_index) + " is gone");
      }
      const Status status = Deliver(item, found->second, planner);
      if (flaw_ != Flaw::kIgnoresReadPlanner) {
        VARVE_RETURN_IF_ERROR(status);
      }
    }
    return Status::Ok();
  }

 private:
  Status Deliver(ReadItem item, const std::string& content, LoadPlanner& planner) {
    if (item.type == LoadItemType::kByteIo) {
      return planner.LoadBytes(item, content);
    }
    VARVE_ASSIGN_OR_RETURN(const TensorMemory memory, planner.ResolveTensor(item));
    ReadItem from = item;
    if (flaw_ == Flaw::kForgetsOffsets) {
      from.storage_offsets.assign(from.storage_offsets.size(), 0);
    }
    VARVE_RETURN_IF_ERROR(
        CopyContent(from, *metadata_.FindChunk(item.storage_index), content, memory));
    if (flaw_ == Flaw::kCommitsTwice) {
      VARVE_RETURN_IF_ERROR(planner.CommitTensor(item, memory));
    }
    return planner.CommitTensor(item, memory);
  }

  Store& store_;
  Flaw flaw_;
  std::string id_;
  StateMetadata metadata_;
};

}  // namespace varve::protocol::test
