#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "format/structure.h"
#include "interop/olmo/dialect.h"
#include "interop/torch/encode.h"

namespace varve {
namespace {

/// Encodes base64 with the alphabet for URLs, padded.
std::string EncodeBase64Url(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = bits << 8U | (j < group.size() ? static_cast<std::uint8_t>(group[j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= group.size() ? kAlphabet[bits >> (18U - 6U * j) & 63U] : '=';
    }
  }
  return text;
}

bool HoldsTensor(const Value& value) {  // NOLINT(misc-no-recursion): DecodeValue bounds the depth.
  return value.kind == ValueKind::kTensorLeaf || value.kind == ValueKind::kTensor ||
         std::any_of(value.items.begin(), value.items.end(), HoldsTensor);
}

Result<Bytes> PickleValue(const Value& value) {
  if (HoldsTensor(value)) {
    return Unimplemented("a tensor in a list; the file names tensors by the keys of dicts only");
  }
  VARVE_ASSIGN_OR_RETURN(PickledState pickled, PickleState(value, {}));
  return std::move(pickled.pickle);
}

class Flattener {
 public:
  Status Add(const Value& mapping) {  // NOLINT(misc-no-recursion): DecodeValue bounds the depth.
    for (std::size_t i = 0; i + 1 < mapping.items.size(); i += 2) {
      path_.push_back(mapping.items[i]);
      const Value& item = mapping.items[i + 1];
      const bool nests = IsMapping(item.kind) && !item.items.empty();
      const Status status = nests ? Add(item) : AddLeaf(item);
      if (!status.ok()) {
        return nests ? status : status.Annotate("\"" + Name() + "\"");
      }
      path_.pop_back();
    }
    return Status::Ok();
  }

  std::vector<OlmoEntry> Take() { return std::move(entries_); }

 private:
  Status AddLeaf(const Value& item) {
    OlmoEntry entry;
    const bool is_tensor = item.kind == ValueKind::kTensorLeaf;
    if (is_tensor) {
      std::size_t number = 0;
      std::from_chars(item.text.data(), item.text.data() + item.text.size(), number);
      entry.tensor = number;
    } else {
      VARVE_ASSIGN_OR_RETURN(entry.pickle, PickleValue(item));
    }
    Value path{.kind = ValueKind::kTuple, .items = path_};
    Value flag{.kind = is_tensor ? ValueKind::kFalse : ValueKind::kTrue};
    VARVE_ASSIGN_OR_RETURN(
        const Bytes key,
        PickleValue({.kind = ValueKind::kTuple, .items = {std::move(path), std::move(flag)}}));
    entry.key = EncodeBase64Url(key);
    entries_.push_back(std::move(entry));
    return Status::Ok();
  }

  [[nodiscard]] std::string Name() const {
    std::string name;
    for (const Value& key : path_) {
      name += (name.empty() ? "" : ".") + KeyText(key);
    }
    return name;
  }

  std::vector<Value> path_;
  std::vector<OlmoEntry> entries_;
};

}  // namespace

Result<std::vector<OlmoEntry>> FlattenForOlmo(const Value& state) {
  if (!IsMapping(state.kind)) {
    return InvalidArgument("the state is no dict");
  }
  Flattener flattener;
  VARVE_RETURN_IF_ERROR(flattener.Add(state));
  return flattener.Take();
}

}  // namespace varve
