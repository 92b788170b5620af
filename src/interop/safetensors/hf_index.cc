// model.safetensors.index.json, as Hugging Face's tools write it: {"metadata": {"total_size": n},
// "weight_map": {name of a tensor: name of its file}}. The input is untrusted; above all, the names
// of files will be opened.

#include <algorithm>
#include <cstddef>
#include <utility>

#include <simdjson.h>

#include "base/json_parser.h"
#include "format/json_writer.h"
#include "interop/safetensors/decode.h"

namespace varve {
namespace {

namespace dom = simdjson::dom;

// Two thousand times the index of a model with 1000 tensors; as for a header in decode.cc.
constexpr std::size_t kMaxIndexBytes = std::size_t{256} << 20;

Status MalformedIndex(std::string_view what) {
  return DataLoss("malformed safetensors index: " + std::string(what));
}

/// Checks that a name is a path under the index's own folder in its simplest form: no two names are
/// then one file, and none leads out through any folder on the way.
Status CheckFileName(std::string_view name) {
  bool plain = name.find('\0') == std::string_view::npos;
  for (std::size_t begin = 0; plain && begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    plain = !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (!plain) {
    std::string shown;
    AppendJsonString(name, &shown);
    return InvalidArgument("file name " + shown + " is no plain path inside the folder");
  }
  return Status::Ok();
}

}  // namespace

std::vector<std::string> HfIndex::FileNames() const {
  std::vector<std::string> names;
  names.reserve(weight_map.size());
  for (const auto& [fqn, file] : weight_map) {
    names.push_back(file);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<HfIndex> DecodeHfIndex(std::string_view json) {
  if (json.empty() || json.size() > kMaxIndexBytes) {
    return MalformedIndex("empty, or larger than 256 MiB");
  }
  JsonParser parser;
  dom::element root;
  if (const auto error = parser.Parse(json).get(root); error) {
    return MalformedIndex(simdjson::error_message(error));
  }
  dom::object members;
  if (root.get(members)) {
    return MalformedIndex("not a JSON object");
  }
  dom::object weight_map;
  bool found = false;
  for (const auto& [key, value] : members) {
    if (key != "weight_map") {
      continue;  // "metadata" holds a size; the files' own are exact.
    }
    if (found || value.get(weight_map)) {
      return MalformedIndex("\"weight_map\" is there twice or not an object");
    }
    found = true;
  }
  if (!found) {
    return MalformedIndex("no \"weight_map\"");
  }
  HfIndex index;
  for (const auto& [fqn, value] : weight_map) {
    std::string_view file;
    if (value.get(file)) {
      return MalformedIndex("the file of tensor \"" + std::string(fqn) + "\" is not a string");
    }
    const Status status = CheckFileName(file);
    VARVE_RETURN_IF_ERROR(
        status.Annotate("safetensors index: tensor \"" + std::string(fqn) + "\""));
    index.weight_map.emplace_back(fqn, file);
  }
  std::sort(index.weight_map.begin(), index.weight_map.end());
  const auto twice =
      std::adjacent_find(index.weight_map.begin(), index.weight_map.end(),
                         [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != index.weight_map.end()) {
    return MalformedIndex("duplicate name \"" + twice->first + "\"");
  }
  return index;
}

std::string EncodeHfIndex(const HfIndex& index, std::uint64_t total_size) {
  std::string json = "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(total_size) +
                     "\n  },\n  \"weight_map\": {";
  bool first = true;
  for (const auto& [fqn, file] : index.weight_map) {
    json += first ? "\n    " : ",\n    ";
    first = false;
    AppendJsonString(fqn, &json);
    json += ": ";
    AppendJsonString(file, &json);
  }
  json += first ? "}\n}\n" : "\n  }\n}\n";
  return json;
}

}  // namespace varve
