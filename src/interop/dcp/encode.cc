#include "interop/dcp/encode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "interop/pickle/writer.h"
#include "interop/state_tree.h"

namespace varve {
namespace {

constexpr std::size_t kPortion = 1000;
constexpr std::size_t kMaxValueDepth = 256;  // As EncodeValue.

constexpr std::array<std::string_view, 5> kDcpAttributes = {
    "state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"};

/// Strings that come again and again, written once. Views of them are kept.
class Strings {
 public:
  explicit Strings(PickleWriter* out) : out_(*out) {}

  void Write(std::string_view text) {
    const auto found = places_.find(text);
    if (found != places_.end()) {
      out_.Recall(found->second);
      return;
    }
    out_.Str(text);
    places_.emplace(text, out_.Remember());
  }

  /// Does the same as Write for a `text` that need not outlive the call: recalled, but not
  /// remembered.
  void WriteOnce(std::string_view text) {
    const auto found = places_.find(text);
    if (found != places_.end()) {
      out_.Recall(found->second);
    } else {
      out_.Str(text);
    }
  }

 private:
  PickleWriter& out_;
  std::unordered_map<std::string_view, PickleWriter::Memo> places_;  // Looked up only.
};

/// Fills a list or dict on top of the stack, in the portions in which Python does.
class Portions {
 public:
  using Close = void (PickleWriter::*)();
  Portions(PickleWriter* out, Close close) : out_(*out), close_(close) {}

  /// Must be called before each item.
  void Next() {
    if (count_ % kPortion == 0) {
      End();
      out_.Mark();
    }
    ++count_;
  }

  void End() {
    if (count_ != 0) {
      (out_.*close_)();
    }
  }

 private:
  PickleWriter& out_;
  Close close_;
  std::size_t count_ = 0;
};

constexpr std::string_view kMetadata = "torch.distributed.checkpoint.metadata";
constexpr std::string_view kFilesystem = "torch.distributed.checkpoint.filesystem";

class Encoder {
 public:
  Encoder(const Metadata& metadata, const DcpEncodeOptions& options, std::string* out)
      : in_(metadata), options_(options), out_(out), strings_(&out_) {
    for (const DcpWrapped& wrapped : options.wrapped) {
      values_.insert(wrapped.fqn);
      for (const DcpInner& inner : wrapped.inner) {
        hidden_.insert(inner.fqn);
      }
    }
  }

  Status Run() {
    New(kMetadata, "Metadata");
    out_.Str("state_dict_metadata");
    VARVE_RETURN_IF_ERROR(State());
    out_.Str("planner_data");
    VARVE_RETURN_IF_ERROR(PlannerData());
    out_.Str("storage_data");
    VARVE_RETURN_IF_ERROR(StorageData());
    out_.Str("storage_meta");
    StorageMeta();
    out_.Str("version");
    out_.Str("1.0.0");
    for (const auto& [name, bytes] : options_.attributes) {
      out_.Str(name);
      out_.BytesObject(bytes);
    }
    Built();
    return out_.Finish();
  }

 private:
  /// Pushes an instance of a class that is not initialised. Its attributes follow, then Built().
  void New(std::string_view module, std::string_view name) {
    out_.Global(module, name);
    out_.Tuple0();
    out_.NewObject();
    out_.Dict();
    out_.Mark();
  }

  void Built() {
    out_.SetItems();
    out_.Build();
  }

  void Number(std::uint64_t value) {
    if (value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      out_.Int(static_cast<std::int64_t>(value));
    } else {
      std::array<char, 9> bytes{};  // The highest bit is the sign.
      for (std::size_t i = 0; i < 8; ++i) {
        bytes[i] = static_cast<char>(value >> (8 * i));
      }
      out_.Int(std::string_view(bytes.data(), bytes.size()));
    }
  }

  void Size(const Dims& dims) {
    out_.Global("torch", "Size");
    if (dims.size() > 3) {
      out_.Mark();
    }
    for (const std::uint64_t size : dims) {
      Number(size);
    }
    switch (dims.size()) {
      case 0: out_.Tuple0(); break;
      case 1: out_.Tuple1(); break;
      case 2: out_.Tuple2(); break;
      case 3: out_.Tuple3(); break;
      default: out_.Tuple();
    }
    out_.Tuple1();
    out_.Reduce();
  }

  /// Writes the entries in the order of the structure, which a state that torch builds of them has;
  /// then those that the structure has not.
  Status State() {
    out_.Dict();
    Portions items(&out_, &PickleWriter::SetItems);
    std::unordered_map<std::string_view, const TensorMetadata*> left;  // Null: of a value.
    for (const TensorMetadata& tensor : in_.tensors) {
      if (!hidden_.contains(tensor.fqn)) {
        left.emplace(tensor.fqn, &tensor);
      }
    }
    for (const ObjectMetadata& object : in_.objects) {
      left.emplace(object.fqn, nullptr);
    }
    const auto write = [&](std::string_view fqn) {
      const auto found = left.find(fqn);
      if (found != left.end()) {
        items.Next();
        Entry(found->first, found->second);
        left.erase(found);
      }
    };
    if (options_.structure != nullptr) {
      std::vector<Part> path;
      std::unordered_set<std::string> seen;  // Looked up only.
      std::string twice;
      VARVE_RETURN_IF_ERROR(Paths(*options_.structure, &path, [&](const auto& found) {
        const auto [name, is_new] = seen.insert(NameOf(found));
        twice = is_new ? twice : *name;
        write(*name);
      }));
      if (!twice.empty()) {
        return InvalidArgument("the state has two entries with the name \"" + twice +
                               "\", as by the keys 1 and \"1\" of one dict");
      }
    }
    for (const TensorMetadata& tensor : in_.tensors) {
      write(tensor.fqn);
    }
    for (const ObjectMetadata& object : in_.objects) {
      write(object.fqn);
    }
    items.End();
    return Status::Ok();
  }

  /// Writes the entry of a tensor; null for that of a value. `fqn` is a name of the metadata's.
  void Entry(std::string_view fqn, const TensorMetadata* tensor) {
    strings_.Write(fqn);
    if (tensor == nullptr) {
      out_.Global(kMetadata, "BytesStorageMetadata");
      out_.Tuple0();
      out_.NewObject();
      return;
    }
    New(kMetadata, "TensorStorageMetadata");
    strings_.Write("properties");
    Properties(*tensor);
    strings_.Write("size");
    Size(tensor->shape);
    strings_.Write("chunks");
    Chunks(*tensor);
    Built();
  }

  /// Writes the id of the save, as torch has it: a UUID's text.
  void StorageMeta() {
    if (in_.save_id == SaveId{}) {
      out_.None();
      return;
    }
    std::string id = ToString(in_.save_id);
    for (const std::size_t dash : {8, 13, 18, 23}) {
      id.insert(dash, "-");
    }
    New(kMetadata, "StorageMeta");
    out_.Str("checkpoint_id");
    out_.None();
    out_.Str("save_id");
    out_.Str(id);
    out_.Str("load_id");
    out_.None();
    out_.Str("modules");
    out_.List();
    Built();
  }

  void Properties(const TensorMetadata& tensor) {
    out_.Global(kMetadata, "TensorProperties");
    out_.Tuple0();
    out_.NewObject();
    out_.Mark();
    out_.Global("torch", DTypeName(tensor.dtype));
    out_.Constant(&layout_, "torch.serialization", "_get_layout",
                  [this] { out_.Str("torch.strided"); });
    out_.Bool(false);  // requires_grad, which torch records and uses nowhere.
    // 0 is TORCH_CONTIGUOUS_FORMAT.
    out_.Constant(&memory_format_, kMetadata, "_MEM_FORMAT_ENCODING", [this] { out_.Int(0); });
    out_.Bool(false);  // pin_memory
    out_.Tuple();
    out_.Build();
  }

  void Chunks(const TensorMetadata& tensor) {
    out_.List();
    Portions items(&out_, &PickleWriter::Appends);
    for (const Chunk& chunk : tensor.chunks) {
      items.Next();
      New(kMetadata, "ChunkStorageMetadata");
      strings_.Write("offsets");
      Size(chunk.box.offsets);
      strings_.Write("sizes");
      Size(chunk.box.sizes);
      Built();
    }
    items.End();
  }

  Status PlannerData() {
    out_.Dict();
    Portions items(&out_, &PickleWriter::SetItems);
    if (options_.structure == nullptr) {
      for (const TensorMetadata& tensor : in_.tensors) {
        if (!hidden_.contains(tensor.fqn)) {
          FlatPath(tensor.fqn, &items);
        }
      }
      for (const ObjectMetadata& object : in_.objects) {
        FlatPath(object.fqn, &items);
      }
    } else {
      std::vector<Part> path;
      VARVE_RETURN_IF_ERROR(
          Paths(*options_.structure, &path, [&](const auto& found) { Path(found, &items); }));
    }
    items.End();
    return Status::Ok();
  }

  /// A key's text, or a position in a list.
  struct Part {
    std::string key;
    std::uint64_t position = 0;
    bool is_position = false;
  };

  /// Calls `take` with the path of each entry of a structure, in its order.
  Status Paths(const Value& value, std::vector<Part>* path,  // NOLINT(misc-no-recursion)
               const std::function<void(const std::vector<Part>&)>& take) {
    if (path->size() > kMaxValueDepth) {
      return InvalidArgument("the structure nests deeper than " + std::to_string(kMaxValueDepth) +
                             " levels");
    }
    switch (value.kind) {
      case ValueKind::kTensorLeaf:
      case ValueKind::kObjectLeaf: take(*path); return Status::Ok();
      case ValueKind::kList:
        for (std::size_t i = 0; i < value.items.size(); ++i) {
          path->push_back({.position = i, .is_position = true});
          VARVE_RETURN_IF_ERROR(Paths(value.items[i], path, take));
          path->pop_back();
        }
        return Status::Ok();
      case ValueKind::kDict:
      case ValueKind::kOrderedDict:
      case ValueKind::kCounter:
      case ValueKind::kDefaultDict:
      case ValueKind::kNamedDict:
      case ValueKind::kWrapped:
        if (value.kind == ValueKind::kWrapped && values_.contains(NameOf(*path))) {
          take(*path);
          return Status::Ok();
        }
        for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
          const Value& key = value.items[i];
          path->push_back({.key = KeyText(key)});
          VARVE_RETURN_IF_ERROR(Paths(value.items[i + 1], path, take));
          path->pop_back();
        }
        return Status::Ok();
      default: return InvalidArgument("the structure holds what is neither container nor leaf");
    }
  }

  void FlatPath(const std::string& fqn, Portions* items) {
    items->Next();
    strings_.WriteOnce(fqn);
    out_.Mark();
    strings_.WriteOnce(fqn);
    out_.Tuple();
  }

  static std::string NameOf(const std::vector<Part>& path) {
    std::string fqn;
    for (const Part& part : path) {
      fqn += (&part == path.data() ? "" : ".") +
             (part.is_position ? std::to_string(part.position) : part.key);
    }
    return fqn;
  }

  void Path(const std::vector<Part>& path, Portions* items) {
    const std::string fqn = NameOf(path);
    if (hidden_.contains(fqn)) {
      return;
    }
    items->Next();
    strings_.WriteOnce(fqn);
    out_.Mark();
    for (const Part& part : path) {
      if (part.is_position) {
        Number(part.position);
      } else {
        strings_.WriteOnce(part.key);
      }
    }
    out_.Tuple();
  }

  Status StorageData() {
    out_.Dict();
    Portions items(&out_, &PickleWriter::SetItems);
    for (const TensorMetadata& tensor : in_.tensors) {
      if (hidden_.contains(tensor.fqn)) {
        continue;
      }
      for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
        items.Next();
        Key(tensor.fqn);
        Number(i);
        strings_.Write("offset");
        Size(tensor.chunks[i].box.offsets);
        Built();
        VARVE_RETURN_IF_ERROR(
            Storage(tensor.chunks[i].extent).Annotate("tensor \"" + tensor.fqn + "\""));
      }
    }
    for (const ObjectMetadata& object : in_.objects) {
      items.Next();
      Key(object.fqn);
      out_.None();
      Built();
      VARVE_RETURN_IF_ERROR(Storage(object.extent).Annotate("value \"" + object.fqn + "\""));
    }
    items.End();
    return Status::Ok();
  }

  /// Pushes a MetadataIndex up to the value of `index`.
  void Key(const std::string& fqn) {
    New(kMetadata, "MetadataIndex");
    strings_.Write("fqn");
    strings_.Write(fqn);
    strings_.Write("index");
  }

  Status Storage(const Extent& extent) {
    const bool is_zstd = extent.encoding == Encoding::kZstdTorchItem;
    if (extent.encoding != Encoding::kTorchItem && !is_zstd) {
      return InvalidArgument("is not stored as torch.save writes it");
    }
    if (extent.file >= in_.files.size() || extent.begin > extent.end ||
        extent.end > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return InvalidArgument("its extent lies in no file");
    }
    New(kFilesystem, "_StorageInfo");
    strings_.Write("relative_path");
    strings_.Write(in_.files[extent.file].name);
    strings_.Write("offset");
    Number(extent.begin);
    strings_.Write("length");
    Number(extent.end - extent.begin);
    if (is_zstd) {
      strings_.Write("transform_descriptors");
      out_.List();
      out_.Mark();
      strings_.Write("stream.zstd/1");
      out_.Appends();
    }
    Built();
    return Status::Ok();
  }

  const Metadata& in_;
  const DcpEncodeOptions& options_;
  std::unordered_set<std::string_view> hidden_;  // Inner tensors. Looked up only, as values_.
  std::unordered_set<std::string_view> values_;  // What they are the inner tensors of.
  PickleWriter out_;
  Strings strings_;
  std::optional<PickleWriter::Memo> layout_;
  std::optional<PickleWriter::Memo> memory_format_;
};

Status CheckOptions(const DcpEncodeOptions& options) {
  const auto& attributes = options.attributes;
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    if (std::find(kDcpAttributes.begin(), kDcpAttributes.end(), attributes[i].first) !=
            kDcpAttributes.end() ||
        (i > 0 && attributes[i - 1].first >= attributes[i].first)) {
      return InvalidArgument("attribute \"" + attributes[i].first +
                             "\" is DCP's own, or out of order");
    }
  }
  return Status::Ok();
}

std::uint64_t ExpectedBytes(const Metadata& metadata, const DcpEncodeOptions& options) {
  std::uint64_t bytes = 4096;
  for (const TensorMetadata& tensor : metadata.tensors) {
    bytes += 200 + 4 * tensor.fqn.size() + tensor.chunks.size() * (100 + 16 * tensor.shape.size());
  }
  for (const ObjectMetadata& object : metadata.objects) {
    bytes += 100 + 4 * object.fqn.size();
  }
  for (const auto& [name, content] : options.attributes) {
    bytes += name.size() + 2 * content.size() + 32;
  }
  return bytes;
}

}  // namespace

Result<std::string> EncodeDcpMetadata(const Metadata& metadata, const DcpEncodeOptions& options) {
  VARVE_RETURN_IF_ERROR(CheckOptions(options));
  std::string out;
  out.reserve(ExpectedBytes(metadata, options));
  VARVE_RETURN_IF_ERROR(Encoder(metadata, options, &out).Run());
  return out;
}

}  // namespace varve
