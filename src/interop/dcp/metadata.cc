#include "interop/dcp/metadata.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "interop/dcp/data_name.h"
#include "interop/dcp/index.h"
#include "interop/dcp/records.h"
#include "interop/pickle/text.h"
#include "tensor/box.h"
#include "tensor/overlap.h"

namespace varve {
namespace {

/// Returns R of "__R_N.distcp", in any folder; 0 for any other name.
std::uint32_t RankOf(std::string_view path) {
  const auto name = ParseDcpDataName(path.substr(path.rfind('/') + 1));
  constexpr std::uint64_t kMaxRank = 1U << 24;
  return name && name->rank < kMaxRank ? static_cast<std::uint32_t>(name->rank) : 0;
}

Status CheckPath(std::string_view path) {
  bool leaves = path.empty() || path.starts_with('/') || path.find('\0') != std::string_view::npos;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    leaves = leaves || rest.substr(0, slash) == "..";
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  return leaves ? InvalidArgument("storage_data: relative_path " + ShownText(path) +
                                  " does not lie in the checkpoint's directory")
                : Status::Ok();
}

/// Sorts unless the range is sorted already: ranks write in order more often than not.
template <class Iterator, class Less>
void SortIfNeeded(Iterator begin, Iterator end, const Less& less) {
  if (!std::is_sorted(begin, end, less)) {
    std::sort(begin, end, less);
  }
}

/// Makes the model of an index: brings chunks and stored bytes together, and checks both.
class Assembler {
 public:
  Assembler(DcpIndex index, const DcpRecords& records, std::uint64_t pickle_bytes)
      : index_(std::move(index)), records_(records), dims_left_(pickle_bytes) {}

  Result<Decoded> Run() {
    out_.metadata.format = Format::kDcp;
    VARVE_RETURN_IF_ERROR(NameFiles());
    GroupEntries();
    out_.metadata.tensors.reserve(index_.tensors.size());
    out_.metadata.objects.reserve(index_.objects.size());
    for (const DcpIndex::Tensor& tensor : index_.tensors) {
      out_.metadata.tensors.emplace_back();
      TensorMetadata& made = out_.metadata.tensors.back();
      made.fqn = records_.names.at(tensor.name);
      made.dtype = tensor.dtype;
      if (const Status status = AddTensor(tensor, &made); !status.ok()) {
        return status.Annotate("tensor " + ShownText(made.fqn));
      }
    }
    MarkPlainTensors();
    for (const auto& [name, inner] : index_.wrapped) {
      VARVE_RETURN_IF_ERROR(AddInner(name, inner));
    }
    for (const std::uint32_t name : index_.objects) {
      out_.metadata.objects.push_back({std::string(records_.names.at(name)), {}});
      VARVE_RETURN_IF_ERROR(AddObject(name, &out_.metadata.objects.back()));
    }
    const auto by_fqn = [](const auto& a, const auto& b) { return a.fqn < b.fqn; };
    SortIfNeeded(out_.metadata.tensors.begin(), out_.metadata.tensors.end(), by_fqn);
    SortIfNeeded(out_.metadata.objects.begin(), out_.metadata.objects.end(), by_fqn);
    for (const auto& [name, shape] : index_.in_blocks) {
      out_.in_blocks.emplace_back(records_.names.at(name), records_.Unpack(shape));
    }
    out_.structure = std::move(index_.structure);
    out_.keys_are_text = !index_.has_varve_structure;
    return std::move(out_);
  }

 private:
  Status NameFiles() {
    const auto count = static_cast<std::uint32_t>(records_.paths.size());
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return records_.paths.at(a) < records_.paths.at(b);
    });
    file_of_path_.resize(count);
    std::uint32_t max_rank = 0;
    for (const std::uint32_t path : order) {
      const std::string_view name = records_.paths.at(path);
      VARVE_RETURN_IF_ERROR(CheckPath(name));
      file_of_path_[path] = static_cast<std::uint32_t>(out_.metadata.files.size());
      DataFile file;
      file.name = name;
      file.rank = RankOf(name);
      max_rank = std::max(max_rank, file.rank);
      out_.metadata.files.push_back(std::move(file));
    }
    out_.metadata.world_size = max_rank + 1;
    return Status::Ok();
  }

  /// Sorts the entries by the number of their name (a counting sort), so that each tensor finds its
  /// own side by side.
  void GroupEntries() {
    entries_begin_.assign(records_.names.size() + 1, 0);
    for (const DcpIndex::Entry& entry : index_.entries) {
      ++entries_begin_[records_.key(entry.key).name + 1];
    }
    std::partial_sum(entries_begin_.begin(), entries_begin_.end(), entries_begin_.begin());
    std::vector<std::uint32_t> next(entries_begin_.begin(), entries_begin_.end() - 1);
    entries_.resize(index_.entries.size());
    for (const DcpIndex::Entry& entry : index_.entries) {
      const DcpKey& key = records_.key(entry.key);
      entries_[next[key.name]++] = {key.offsets, entry.storage};
    }
    index_.entries = {};
  }

  Status AddTensor(const DcpIndex::Tensor& tensor, TensorMetadata* made) {
    made->shape = records_.Unpack(tensor.shape);
    const auto begin = index_.chunks.begin() + static_cast<std::ptrdiff_t>(tensor.chunks_begin);
    const auto end = index_.chunks.begin() + static_cast<std::ptrdiff_t>(tensor.chunks_end);
    // Empty chunks come behind the one at the same place that is not.
    SortIfNeeded(begin, end, [this](std::uint32_t a, std::uint32_t b) {
      const DcpChunk& left = records_.chunk(a);
      const DcpChunk& right = records_.chunk(b);
      const int order = records_.Compare(left.offsets, right.offsets);
      return order != 0 ? order < 0 : records_.Compare(right.sizes, left.sizes) < 0;
    });
    const auto first = entries_.begin() + entries_begin_[tensor.name];
    const auto last = entries_.begin() + entries_begin_[tensor.name + 1];
    VARVE_RETURN_IF_ERROR(SortEntries(first, last));
    auto entry = first;
    std::vector<Chunk>& chunks = made->chunks.Listed();
    chunks.reserve(static_cast<std::size_t>(end - begin));
    for (auto at = begin; at != end; ++at) {
      const DcpChunk& chunk = records_.chunk(*at);
      if (at != begin && records_.Compare(chunk.offsets, records_.chunk(at[-1]).offsets) == 0 &&
          records_.HasZero(chunk.sizes)) {
        continue;
      }
      while (entry != last && records_.Compare(entry->offsets, chunk.offsets) < 0) {
        ++entry;
      }
      VARVE_RETURN_IF_ERROR(AddChunk(chunk, entry == last ? nullptr : &*entry, made));
    }
    VARVE_ASSIGN_OR_RETURN(const auto overlap, FindOverlap(BoxesOf(chunks)));
    if (overlap) {
      return DataLoss("stored chunks overlap: " + ToString(chunks[overlap->first].box) + " and " +
                      ToString(chunks[overlap->second].box));
    }
    return Status::Ok();
  }

  /// The entry of storage_data for one chunk or value.
  struct Entry {
    PackedDims offsets;
    std::uint32_t storage = 0;
  };
  using EntryIterator = std::vector<Entry>::iterator;

  Status SortEntries(EntryIterator first, EntryIterator last) const {
    SortIfNeeded(first, last, [this](const Entry& a, const Entry& b) {
      return records_.Compare(a.offsets, b.offsets) < 0;
    });
    for (auto at = first; at != last; ++at) {
      if (at != first && records_.Compare(at[-1].offsets, at->offsets) == 0) {
        return DataLoss("storage_data has two entries for one chunk");
      }
    }
    return Status::Ok();
  }

  Status AddChunk(const DcpChunk& chunk, const Entry* entry, TensorMetadata* made) {
    Chunk& added = made->chunks.Listed().emplace_back();
    added.box = {records_.Unpack(chunk.offsets), records_.Unpack(chunk.sizes)};
    if (2 * added.box.sizes.size() > dims_left_) {
      return DataLoss("more chunks than the pickle has room for");
    }
    dims_left_ -= 2 * added.box.sizes.size();
    if (const Status status = CheckBox(made->shape, added.box, ItemSize(made->dtype));
        !status.ok()) {
      return DataLoss(status.message());
    }
    if (entry == nullptr || records_.Compare(entry->offsets, chunk.offsets) != 0) {
      return DataLoss("storage_data has no entry for the chunk at " + ToString(added.box.offsets));
    }
    return SetExtent(*entry, &added.extent);
  }

  /// Other software writes elements alone, without an archive around them (DLRover's flash
  /// checkpoints). An archive has more bytes than its elements, so an index in which no tensor has
  /// more is of that kind.
  void MarkPlainTensors() {
    std::uint64_t stored = 0;
    for (const TensorMetadata& tensor : out_.metadata.tensors) {
      for (const Chunk& chunk : tensor.chunks) {
        const std::uint64_t bytes = Volume(chunk.box.sizes) * ItemSize(tensor.dtype);
        if (chunk.extent.end - chunk.extent.begin != bytes ||
            chunk.extent.encoding != Encoding::kTorchItem) {
          return;
        }
        stored += bytes;
      }
    }
    for (TensorMetadata& tensor : out_.metadata.tensors) {
      for (Chunk& chunk : tensor.chunks.Listed()) {
        chunk.extent.encoding = stored > 0 ? Encoding::kPlain : chunk.extent.encoding;
      }
    }
  }

  /// Adds the tensors that lie in the item of the value `name`.
  Status AddInner(std::uint32_t name, const std::vector<DcpInner>& inner) {
    ObjectMetadata value{std::string(records_.names.at(name)), {}};
    VARVE_RETURN_IF_ERROR(AddObject(name, &value));
    for (const DcpInner& tensor : inner) {
      const Box whole = WholeBox(tensor.shape);
      const Status status = CheckBox(tensor.shape, whole, ItemSize(tensor.dtype));
      const std::uint64_t bytes = status.ok() ? Volume(tensor.shape) * ItemSize(tensor.dtype) : 0;
      const std::uint64_t length = value.extent.end - value.extent.begin;
      if (!status.ok() || tensor.begin > length || bytes > length - tensor.begin ||
          value.extent.encoding != Encoding::kTorchItem) {
        return DataLoss("tensor " + ShownText(tensor.fqn) + " does not lie in the item of " +
                        ShownText(value.fqn));
      }
      const std::uint64_t begin = value.extent.begin + tensor.begin;
      out_.metadata.tensors.push_back(
          {tensor.fqn,
           tensor.dtype,
           tensor.shape,
           {{whole, {value.extent.file, begin, begin + bytes, Encoding::kPlain}}}});
    }
    return Status::Ok();
  }

  Status AddObject(std::uint32_t name, ObjectMetadata* made) {
    const auto first = entries_.begin() + entries_begin_[name];
    const auto last = entries_.begin() + entries_begin_[name + 1];
    const auto is_value = [](const Entry& entry) { return entry.offsets.IsNone(); };
    const auto count = std::count_if(first, last, is_value);
    if (count != 1) {
      return DataLoss("value " + ShownText(made->fqn) + ": storage_data has " +
                      (count == 0 ? "no entry" : "two entries") + " for it");
    }
    Status status = SetExtent(*std::find_if(first, last, is_value), &made->extent);
    return status.ok() ? status : status.Annotate("value " + ShownText(made->fqn));
  }

  Status SetExtent(const Entry& entry, Extent* extent) const {
    const DcpStorage& storage = records_.storage(entry.storage);
    const std::string_view transforms = records_.transforms.at(storage.transform);
    *extent = {file_of_path_[storage.path], storage.begin, storage.begin + storage.bytes,
               Encoding::kTorchItem};
    if (transforms == "stream.zstd/1") {
      extent->encoding = Encoding::kZstdTorchItem;
    } else if (!transforms.empty()) {
      return Unimplemented("stored with the transforms " + ShownText(transforms));
    }
    return Status::Ok();
  }

  DcpIndex index_;
  const DcpRecords& records_;
  std::uint64_t dims_left_;
  std::vector<std::uint32_t> file_of_path_;
  std::vector<std::uint32_t> entries_begin_;  // In entries_, by name; one more at the end.
  std::vector<Entry> entries_;
  Decoded out_;
};

}  // namespace

Result<Decoded> DecodeDcpMetadata(std::string_view pickle, DcpAttributeList* attributes) {
  std::optional<DcpRecords> records(std::in_place, pickle);
  Result<DcpIndex> index = ReadDcpIndex(pickle, true, &*records);
  if (!index.ok() && index.status().code() == StatusCode::kFailedPrecondition) {
    records.emplace(pickle);
    index = ReadDcpIndex(pickle, false, &*records);
  }
  if (!index.ok()) {
    return index.status();
  }
  if (attributes != nullptr) {
    *attributes = std::move(index->attributes);
  }
  return Assembler(std::move(*index), *records, pickle.size()).Run();
}

}  // namespace varve
