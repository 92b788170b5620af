#include "interop/olmo/dialect.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "interop/olmo/names.h"
#include "interop/torch/archive.h"
#include "interop/torch/state_reader.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::uint64_t kMaxValueBytes = std::uint64_t{1} << 30;

// Paths and values whose pickles use one object many times could ask for any amount of memory. Each
// is bounded by itself (StateReader); these bound all of a file.
constexpr std::size_t kMaxNameBytes = 64 << 10;
constexpr std::uint64_t kGrowthOfFile = 8;
constexpr std::uint64_t kFreeBytesOfFile = std::uint64_t{256} << 20;

/// Decodes base64 with the alphabet for URLs. Nothing for anything else.
std::optional<std::string> DecodeBase64Url(std::string_view text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const std::size_t digits = text.find_last_not_of('=') + 1;
  if (text.size() % 4 != 0 || text.size() - digits > 2) {
    return std::nullopt;
  }
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char character : text.substr(0, digits)) {
    const std::size_t value = kAlphabet.find(character);
    if (value == std::string_view::npos) {
      return std::nullopt;
    }
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes += static_cast<char>(bits >> static_cast<unsigned>(count) & 0xFFU);
    }
  }
  return bytes;
}

/// An entry's path in the state, and whether its tensor holds a pickle.
struct Key {
  std::vector<Value> path;
  bool is_pickled = false;
};

/// Returns what a key of the dialect says; nothing for a plain name.
std::optional<Key> KeyAt(const std::string& name) {
  auto pickle = DecodeBase64Url(name);
  if (!pickle || pickle->size() < 2 || (*pickle)[0] != '\x80') {
    return std::nullopt;
  }
  const auto archive = TorchArchive::OfPickle(*std::move(pickle));
  if (!archive.ok()) {
    return std::nullopt;
  }
  const auto value = archive->ValueAt(archive->tree().root(), ReadFrom(""));
  if (!value.ok() || !*value || (*value)->kind != ValueKind::kTuple ||
      (*value)->items.size() != 2 || (*value)->items[0].kind != ValueKind::kTuple ||
      (*value)->items[0].items.empty()) {
    return std::nullopt;
  }
  return Key{(*value)->items[0].items, (*value)->items[1].kind == ValueKind::kTrue};
}

/// A state that grows leaf by leaf. Finds containers by their paths: searching the keys of each
/// would take quadratic time.
class StateBuilder {
 public:
  /// Adds a leaf. Returns false where another entry is in its way, and for a path that is too deep.
  bool Add(const std::vector<Value>& path, StateNode leaf) {
    if (path.size() > static_cast<std::size_t>(kMaxStateDepth)) {
      return false;
    }
    StateNode* at = &root_;
    std::string where;
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      where += EncodeValue(path[i]);
      const auto [place, is_new] = places_.try_emplace(where, at->items.size());
      if (is_new) {
        at->keys.push_back(path[i]);
        at->items.emplace_back();
      }
      at = &at->items[place->second];
      if (!at->IsMapping()) {
        return false;
      }
    }
    where += EncodeValue(path.back());
    if (!places_.try_emplace(where, at->items.size()).second) {
      return false;
    }
    at->keys.push_back(path.back());
    at->items.push_back(std::move(leaf));
    return true;
  }

  StateNode Take() { return std::move(root_); }

 private:
  StateNode root_;
  std::unordered_map<std::string, std::size_t> places_;  // In the container. Looked up only.
};

/// Reads the value whose pickle a uint8 tensor holds.
Result<StateNode> PickledAt(const NamedFile& file, const SafetensorsHeader::Tensor& tensor,
                            const std::string& name) {
  if (tensor.end - tensor.begin > kMaxValueBytes) {
    return InvalidArgument("\"" + name + "\" is a pickle of " +
                           std::to_string(tensor.end - tensor.begin) + " bytes");
  }
  VARVE_ASSIGN_OR_RETURN(std::string bytes, file.read(tensor.begin, tensor.end - tensor.begin));
  auto archive = TorchArchive::OfPickle(std::move(bytes));
  if (!archive.ok()) {
    return archive.status().Annotate("the pickle of \"" + name + "\"");
  }
  const RangeReader nothing = ReadFrom("");
  return StateReader(*archive, nothing, 0).At(archive->tree().root(), name);
}

/// Returns about the bytes that a state takes.
std::uint64_t MemoryOf(const StateNode& state) {
  std::uint64_t bytes = sizeof(state) + state.value.size();
  for (const Value& key : state.keys) {
    bytes += sizeof(key) + key.text.size();
  }
  for (const StateNode& item : state.items) {
    bytes += MemoryOf(item);
  }
  return bytes;
}

std::string NameOf(const std::vector<Value>& path) {
  std::string name;
  for (const Value& part : path) {
    if (!name.empty()) {
      name += '.';
    }
    name += KeyText(part);
  }
  return name;
}

}  // namespace

Result<StateNode> ReadOlmoSafetensors(const NamedFile& file, std::uint32_t number) {
  VARVE_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(file));
  // Keys of one container come in the order of the file, which is that of the state.
  std::vector<const SafetensorsHeader::Tensor*> tensors;
  tensors.reserve(header.tensors.size());
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
    tensors.push_back(&tensor);
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const auto* a, const auto* b) { return a->begin < b->begin; });
  StateBuilder state;
  std::uint64_t bytes_left = file.size * kGrowthOfFile + kFreeBytesOfFile;
  for (const SafetensorsHeader::Tensor* const tensor : tensors) {
    const Key key = KeyAt(tensor->fqn).value_or(Key{{Value::Str(tensor->fqn)}, false});
    const std::string name = NameOf(key.path);
    if (name.size() > kMaxNameBytes) {
      return InvalidArgument("a name of " + std::to_string(name.size()) + " bytes: \"" +
                             name.substr(0, 100) + "...\"");
    }
    StateNode leaf;
    if (key.is_pickled) {
      VARVE_ASSIGN_OR_RETURN(leaf, PickledAt(file, *tensor, name));
    } else {
      Chunk chunk{.box = WholeBox(tensor->shape),
                  .extent = {number, tensor->begin, tensor->end, Encoding::kPlain},
                  .content = {},
                  .strides = {}};
      leaf = StateNode::OfTensor({tensor->dtype, tensor->shape, {std::move(chunk)}, {}});
    }
    const std::uint64_t bytes = MemoryOf(leaf) + name.size();
    if (bytes > bytes_left) {
      return InvalidArgument("its values are many times larger than the file");
    }
    bytes_left -= bytes;
    if (!state.Add(key.path, std::move(leaf))) {
      return DataLoss("\"" + name + "\" is in the way of another entry, or nests too deep");
    }
  }
  return state.Take();
}

Result<StateNode> ReadWholeState(const NamedFile& file, std::uint32_t number,
                                 const std::string& name, std::vector<RecordCrc>* records) {
  if (file.name.ends_with(".safetensors")) {
    return ReadOlmoSafetensors(file, number);
  }
  VARVE_ASSIGN_OR_RETURN(const TorchArchive archive, TorchArchive::Open(file.size, file.read));
  const std::vector<RecordCrc> storages = StorageRecords(archive, number);
  records->insert(records->end(), storages.begin(), storages.end());
  return StateReader(archive, file.read, number).At(archive.tree().root(), name);
}

void CleanModelNames(StateNode* model) {
  for (std::size_t i = 0; i < model->keys.size(); ++i) {
    if (model->keys[i].kind == ValueKind::kStr) {
      model->Rename(i, CleanName(model->keys[i].text));
    }
  }
}

}  // namespace varve
