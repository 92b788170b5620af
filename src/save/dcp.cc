// PyTorch's format: a file of torch.save archives for each rank, and `.metadata` as the index.

#include "catalogue/formats/dcp.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "catalogue/side_files.h"
#include "format/structure.h"
#include "interop/state_tree.h"
#include "interop/torch/encode.h"
#include "save/dcp_index.h"
#include "save/dcp_items.h"
#include "save/written_format.h"
#include "tensor/box.h"
#include "varve/value.h"

namespace varve {
namespace {

/// Returns the numbers of the chunks in the order in which the file has them, that of native files:
/// larger elements first, then by name and place.
std::vector<std::size_t> FileOrder(const LocalPlan& plan, const RankAssignment& assignment) {
  std::vector<std::size_t> order(assignment.chunks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const ChunkAssignment& left = assignment.chunks[a];
    const ChunkAssignment& right = assignment.chunks[b];
    const PlannedTensor& item_a = plan.tensors[left.item];
    const PlannedTensor& item_b = plan.tensors[right.item];
    const std::uint64_t size_a = ItemSize(item_a.dtype());
    const std::uint64_t size_b = ItemSize(item_b.dtype());
    if (size_a != size_b) {
      return size_a > size_b;
    }
    return std::tie(item_a.fqn(), left.BoxIn(plan).offsets) <
           std::tie(item_b.fqn(), right.BoxIn(plan).offsets);
  });
  return order;
}

/// Returns a rank's file without data, from the `layout` of a prepared one. Errors: DataLoss when
/// `layout` is not one.
Result<FileWork> DescribeShare(std::string_view layout) {
  VARVE_ASSIGN_OR_RETURN(DcpFile file, DecodeDcpFile(layout));
  FileWork work;
  work.size = file.size;
  work.block_bytes = file.block_bytes;
  work.layout = layout;
  work.finish = [file = std::move(file)](WrittenSegments data) -> Result<FinishedFile> {
    DcpFile written = file;
    written.block_crc32c = std::move(data.block_crc32c);
    return FinishedFile{{}, EncodeDcpFile(written)};
  };
  return work;
}

/// Where the items of a share are: for each chunk, and then each value, of the assignment its first
/// and its last one. A value that is no item has kNone.
constexpr std::size_t kNone = ~std::size_t{0};
using Places = std::vector<std::pair<std::size_t, std::size_t>>;

/// Makes the items of a rank's file: chunks, then values. Those whose storages are chunks come with
/// these between their items, so that the archive is the value's and the elements are the chunks'.
class ShareItems {
 public:
  ShareItems(const State& state, const LocalPlan& plan, const RankAssignment& assignment)
      : state_(state), plan_(plan), assignment_(assignment) {
    places_.assign(assignment.chunks.size() + assignment.objects.size(), {kNone, kNone});
    for (std::size_t i = 0; i < assignment.chunks.size(); ++i) {
      const PlannedTensor& tensor = plan.tensors[assignment.chunks[i].item];
      if (tensor.part_of && assignment.chunks[i].BoxIn(plan) == tensor.box) {
        whole_[tensor.fqn()] = i;
      }
    }
  }

  Status Run() {
    for (std::size_t i = 0; i < assignment_.objects.size(); ++i) {
      FindStorages(i);
    }
    for (const std::size_t chunk : FileOrder(plan_, assignment_)) {
      if (!storages_.contains(chunk)) {
        Place(chunk, Add(state_.tensors[assignment_.chunks[chunk].item].fqn, TensorOf(chunk)));
      }
    }
    for (std::size_t i = 0; i < assignment_.objects.size(); ++i) {
      VARVE_RETURN_IF_ERROR(AddObject(i));
    }
    for (const auto& [object, same] : tied_) {
      places_[assignment_.chunks.size() + object] = places_[assignment_.chunks.size() + same];
    }
    return Status::Ok();
  }

  std::vector<DcpItem> TakeItems() { return std::move(items_); }
  [[nodiscard]] const Places& places() const { return places_; }

 private:
  [[nodiscard]] const SourceObject& ObjectAt(std::size_t i) const {
    return state_.objects[assignment_.objects[i]];
  }

  [[nodiscard]] DcpTensor TensorOf(std::size_t chunk) const {
    const SourceTensor& source = state_.tensors[assignment_.chunks[chunk].item];
    return {source.dtype, source.box, assignment_.chunks[chunk].BoxIn(plan_), source.source};
  }

  std::size_t Add(const std::string& fqn, std::variant<DcpTensor, std::string> content) {
    items_.push_back({fqn, std::move(content)});
    return items_.size() - 1;
  }

  void Place(std::size_t entry, std::size_t item) { places_[entry] = {item, item}; }

  /// Finds the chunks that are the storages of a value, if this rank writes them all; or the value
  /// that it is tied to.
  void FindStorages(std::size_t object) {
    std::vector<std::size_t> chunks;
    for (const std::string& name : ObjectAt(object).storages) {
      const auto found = whole_.find(name);
      if (found == whole_.end()) {
        FindTied(object);
        return;
      }
      chunks.push_back(found->second);
    }
    storages_.insert(chunks.begin(), chunks.end());
    chunks_of_.emplace(object, std::move(chunks));
  }

  /// Notes the value that all parts of this one are tied to those of.
  void FindTied(std::size_t object) {
    std::optional<std::uint32_t> of;
    std::size_t tied = 0;
    for (const std::uint32_t alias : assignment_.aliases) {
      const PlannedTensor& tensor = plan_.tensors[alias];
      if (tensor.part_of != assignment_.objects[object]) {
        continue;
      }
      const auto to = plan_.tensors[*tensor.tied_to].part_of;
      if (!to || of.value_or(*to) != *to) {
        return;
      }
      of = to;
      ++tied;
    }
    if (!of || tied != ObjectAt(object).storages.size()) {
      return;
    }
    const auto found =
        std::lower_bound(assignment_.objects.begin(), assignment_.objects.end(), *of);
    if (found != assignment_.objects.end() && *found == *of) {
      tied_.emplace_back(object, found - assignment_.objects.begin());
    }
  }

  Status AddObject(std::size_t number) {
    const SourceObject& object = ObjectAt(number);
    if (object.storages.empty()) {
      VARVE_ASSIGN_OR_RETURN(const Value value, DecodeValue(object.encoded));
      auto archive = EncodeValueArchive(value);
      if (!archive.ok()) {
        return archive.status().Annotate("\"" + object.fqn + "\"");
      }
      Place(assignment_.chunks.size() + number, Add(object.fqn, std::move(*archive)));
      return Status::Ok();
    }
    const auto found = chunks_of_.find(number);
    if (found != chunks_of_.end()) {
      AddArchive(number, found->second);
    }
    return Status::Ok();
  }

  void AddArchive(std::size_t number, const std::vector<std::size_t>& chunks) {
    const SourceObject& object = ObjectAt(number);
    std::vector<std::uint64_t> bytes;
    for (const std::size_t chunk : chunks) {
      const PlannedTensor& tensor = plan_.tensors[assignment_.chunks[chunk].item];
      bytes.push_back(Volume(tensor.shape()) * ItemSize(tensor.dtype()));
    }
    StorageHeads archive = EncodePickledArchive(object.encoded, bytes);
    const std::size_t first = items_.size();
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      Bytes& head = archive.heads[i];
      head.resize(head.size() - archive.filler_bytes[i]);
      const std::size_t at = Add(object.fqn, std::move(head));
      items_[at].on_page = i == 0 && archive.on_page;
      items_[at].filler_bytes = archive.filler_bytes[i];
      DcpTensor tensor = TensorOf(chunks[i]);
      tensor.bare = true;
      Place(chunks[i], Add(object.storages[i], std::move(tensor)));
    }
    places_[assignment_.chunks.size() + number] = {first, Add(object.fqn, std::move(archive.tail))};
  }

  const State& state_;
  const LocalPlan& plan_;
  const RankAssignment& assignment_;
  std::vector<DcpItem> items_;
  Places places_;
  std::map<std::string_view, std::size_t> whole_;              // Chunks that may be storages.
  std::set<std::size_t> storages_;                             // Chunks that are.
  std::map<std::size_t, std::vector<std::size_t>> chunks_of_;  // Of a value.
  std::vector<std::pair<std::size_t, std::size_t>> tied_;      // A value and the one it is too.
};

/// Returns from the first to the last of the items at a place; an extent of no bytes for none.
DcpExtent ExtentOf(const std::pair<std::size_t, std::size_t>& place,
                   const std::vector<DcpExtent>& items) {
  if (place.first == kNone) {
    return {};
  }
  DcpExtent extent = items[place.first];
  extent.length = items[place.second].offset + items[place.second].length - extent.offset;
  return extent;
}

/// Prepares the same with data. The file has the chunks and then the values; `layout` lists them in
/// the order of the assignment.
Result<FileWork> PrepareShare(const State& state, const SettledSave& settled) {
  struct Parts {
    std::vector<DcpItem> items;
    std::shared_ptr<const void> layout;
  };
  const auto parts = std::make_shared<Parts>();
  ShareItems share(state, settled.plan(), settled.assignment());
  VARVE_RETURN_IF_ERROR(share.Run());
  parts->items = share.TakeItems();
  VARVE_ASSIGN_OR_RETURN(DcpWork laid_out, LayOutDcpItems(parts->items));
  parts->layout = std::move(laid_out.keep);
  DcpFile file;
  file.size = laid_out.size;
  file.block_bytes = settled.identity.block_bytes;
  for (const auto& place : share.places()) {
    file.items.push_back(ExtentOf(place, laid_out.items));
  }
  VARVE_ASSIGN_OR_RETURN(FileWork work, DescribeShare(EncodeDcpFile(file)));
  work.segments = std::move(laid_out.segments);
  work.keep = parts;
  work.name_of = [parts](std::uint32_t owner) { return parts->items[owner].fqn; };
  return work;
}

/// Returns whether a tensor that is made of others was in shards: the fifth of what its text says,
/// which varve.torch writes.
bool IsSharded(const Value& wrapped) {
  const std::size_t end = wrapped.text.find('\0');
  if (end == std::string::npos) {
    return false;
  }
  const auto about = DecodeValue(std::string_view(wrapped.text).substr(end + 1));
  return about.ok() && about->items.size() > 4 && about->items[4].kind == ValueKind::kTrue;
}

/// Returns the class of the tensor in shards whose inner tensor lies at `path` of a structure;
/// empty for other entries.
std::string_view ShardedClassAround(const Value& structure, std::string_view path) {
  if (structure.kind == ValueKind::kWrapped && IsSharded(structure)) {
    return ClassOf(structure);
  }
  const bool mapping = IsMapping(structure.kind);
  const std::size_t step = mapping ? 2 : 1;
  for (std::size_t i = 0; i + step <= structure.items.size(); i += step) {
    const std::string key = mapping ? KeyText(structure.items[i]) : std::to_string(i);
    if (path.starts_with(key + ".")) {
      const std::string_view found =
          ShardedClassAround(structure.items[i + step - 1], path.substr(key.size() + 1));
      if (!found.empty()) {
        return found;
      }
    }
  }
  return {};
}

/// Returns whether ranks hold a tensor whole, not in shards of its own. It is one whose replicas
/// differ, so folded plans name it.
bool IsHeldWhole(const std::vector<LocalPlan>& plans, std::string_view fqn) {
  return std::any_of(plans.begin(), plans.end(), [&](const LocalPlan& plan) {
    return std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const PlannedTensor& tensor) {
      return tensor.fqn() == fqn && tensor.box == WholeBox(tensor.shape());
    });
  });
}

/// The index has no limit but memory. What it cannot hold are the values of several ranks under one
/// name; of a tensor in shards each of them is a part of the whole.
Status CheckDcp(const SettledSave& settled) {
  const std::vector<std::string>& differing = settled.settled.differing_tensors;
  if (differing.empty() || settled.settled.ranks.empty() ||
      settled.settled.ranks[0].structure.empty()) {
    return Status::Ok();
  }
  VARVE_ASSIGN_OR_RETURN(const Value structure, DecodeValue(settled.settled.ranks[0].structure));
  for (const std::string& fqn : differing) {
    const std::string_view kind = ShardedClassAround(structure, fqn);
    if (!kind.empty() && IsHeldWhole(settled.plans, fqn)) {
      const std::size_t dot = fqn.rfind('.');
      return FailedPrecondition(
          "tensor \"" + fqn.substr(0, dot) + "\", a " + std::string(kind) + ": each shard has a " +
          fqn.substr(dot + 1) +
          " of its own, and DCP's format holds one value under a name; nothing was written. "
          "Varve's own format keeps those of all ranks");
    }
  }
  return Status::Ok();
}

Result<RankFile> LayOutDcpFile(const State* state, const SettledSave& settled) {
  RankFile file;
  file.name = DcpFileName(settled.identity.rank);
  VARVE_ASSIGN_OR_RETURN(
      file.work, state == nullptr ? DescribeShare(settled.layout) : PrepareShare(*state, settled));
  return file;
}

/// Adds what one rank has written.
Status AddRank(std::uint32_t rank, const LocalPlan& plan, const RankAssignment& assignment,
               const DcpFile& file, DcpIndexBuilder* index) {
  const std::size_t chunks = assignment.chunks.size();
  if (file.items.size() != chunks + assignment.objects.size()) {
    return Internal("rank " + std::to_string(rank) + " reports other items than it was given");
  }
  VARVE_ASSIGN_OR_RETURN(const std::uint32_t number, index->AddFile(rank, file));
  std::map<std::uint32_t, std::vector<std::uint32_t>> aliases;  // Of an item: items tied to it.
  for (const std::uint32_t alias : assignment.aliases) {
    aliases[*plan.tensors[alias].tied_to].push_back(alias);
  }
  const auto add = [&](std::uint32_t item, const Box& box, const DcpExtent& place) {
    const PlannedTensor& tensor = plan.tensors[item];
    Chunk chunk = DcpChunkOf(number, box, place);
    if (place.payload == 0) {  // Bare, in the archive of a value.
      chunk.extent.encoding = Encoding::kPlain;
    }
    index->AddTensor(tensor.fqn(), tensor.dtype(), tensor.shape()).push_back(std::move(chunk));
  };
  for (std::size_t i = 0; i < chunks; ++i) {
    const ChunkAssignment& chunk = assignment.chunks[i];
    const Box& box = chunk.BoxIn(plan);
    add(chunk.item, box, file.items[i]);
    for (const std::uint32_t alias : aliases[chunk.item]) {
      add(alias, box, file.items[i]);
    }
  }
  for (std::size_t i = 0; i < assignment.objects.size(); ++i) {
    if (file.items[chunks + i].length > 0) {  // None: its storages are entries of their own.
      index->AddObject(plan.objects[assignment.objects[i]].fqn, number, file.items[chunks + i]);
    }
  }
  return Status::Ok();
}

Result<CheckpointIndex> MakeDcpIndex(const SettledSave& settled,
                                     const std::vector<std::string>& receipts,
                                     const std::string& below) {
  DcpIndexBuilder index(settled.identity.block_bytes, settled.identity.save_id);
  const auto add = [&](std::uint32_t rank, const LocalPlan& plan,
                       const RankAssignment& assignment) -> Status {
    VARVE_ASSIGN_OR_RETURN(const DcpFile file, DecodeDcpFile(receipts[rank]));
    return AddRank(rank, plan, assignment, file, &index);
  };
  VARVE_RETURN_IF_ERROR(settled.ForEachRank(add));
  std::optional<Value> structure;
  if (!settled.assignment().structure.empty()) {
    VARVE_ASSIGN_OR_RETURN(structure, DecodeValue(settled.assignment().structure));
  }
  return index.Finish(structure, DescribeSideFiles(settled.side_files), below);
}

}  // namespace

const WrittenFormat kDcpFormat{.format = Format::kDcp,
                               .rank_local = false,
                               .holds_variants = false,
                               .takes_folded = true,
                               .check = CheckDcp,
                               .lay_out = LayOutDcpFile,
                               .index_name = kDcpIndexName,
                               .make_index = MakeDcpIndex};

}  // namespace varve
