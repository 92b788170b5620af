/// Indexes of DCP checkpoints put together by hand, right and wrong ones.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/pickles.h"

namespace varve::test::dcp {

namespace p = pickled;

inline const std::string kMetadata = "torch.distributed.checkpoint.metadata";
inline const std::string kFilesystem = "torch.distributed.checkpoint.filesystem";

inline std::string New(const std::string& module, const std::string& name,
                       const std::vector<std::string>& attributes) {
  return p::Build(p::Global(module, name) + ")\x81", p::Dict(attributes));
}
inline std::string Size(const std::vector<std::int64_t>& sizes) {
  return p::Call(p::Global("torch", "Size"), {p::Ints(sizes)});
}
inline std::string Chunk(const std::vector<std::int64_t>& offsets,
                         const std::vector<std::int64_t>& sizes) {
  return New(kMetadata, "ChunkStorageMetadata",
             {p::Str("offsets"), Size(offsets), p::Str("sizes"), Size(sizes)});
}
inline std::string Layout(std::string_view name = "torch.strided") {
  return p::Call(p::Global("torch.serialization", "_get_layout"), {p::Str(name)});
}
inline std::string Properties(const std::string& dtype = "float32",
                              const std::string& layout = Layout(),
                              const std::string& module = kMetadata,
                              const std::string& format_enum = "_MEM_FORMAT_ENCODING") {
  return p::Build(p::Global(module, "TensorProperties") + ")\x81",
                  p::Tuple({p::Global("torch", dtype), layout, p::kFalse,
                            p::Call(p::Global(module, format_enum), {p::Int(0)}), p::kFalse}));
}
inline std::string Tensor(const std::vector<std::int64_t>& size,
                          const std::vector<std::string>& chunks,
                          const std::string& properties = Properties()) {
  return New(kMetadata, "TensorStorageMetadata",
             {p::Str("properties"), properties, p::Str("size"), Size(size), p::Str("chunks"),
              p::List(chunks)});
}
inline std::string Bytes() { return p::Global(kMetadata, "BytesStorageMetadata") + ")\x81"; }

inline std::string Key(std::string_view fqn, const std::vector<std::int64_t>& offset) {
  return New(
      kMetadata, "MetadataIndex",
      {p::Str("fqn"), p::Str(fqn), p::Str("index"), p::Int(0), p::Str("offset"), Size(offset)});
}
inline std::string Key(std::string_view fqn) {
  return New(kMetadata, "MetadataIndex", {p::Str("fqn"), p::Str(fqn), p::Str("index"), p::kNone});
}
inline std::string Stored(std::string_view path, std::int64_t offset, std::int64_t length,
                          const std::vector<std::string>& more = {}) {
  return New(kFilesystem, "_StorageInfo",
             {p::Str("relative_path"), p::Str(path), p::Str("offset"), p::Int(offset),
              p::Str("length"), p::Int(length), p::All(more)});
}

/// Keys and values in turn, as opcodes.
struct Index {
  std::vector<std::string> state;
  std::vector<std::string> storage;
  std::string planner_data = p::kNone;
  std::vector<std::string> more;

  /// Adds a float32 tensor of one dimension in chunks of these lengths, each in a file of its rank.
  Index& Add(std::string_view fqn, const std::vector<std::int64_t>& lengths) {
    std::vector<std::string> chunks;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      chunks.push_back(Chunk({at}, {lengths[i]}));
      storage.push_back(Key(fqn, {at}));
      storage.push_back(Stored("__" + std::to_string(i) + "_0.distcp", 100 * at, 1000));
      at += lengths[i];
    }
    state.push_back(p::Str(fqn));
    state.push_back(Tensor({at}, chunks));
    return *this;
  }

  Index& AddValue(std::string_view fqn) {
    state.push_back(p::Str(fqn));
    state.push_back(Bytes());
    storage.push_back(Key(fqn));
    storage.push_back(Stored("__0_0.distcp", 7, 70));
    return *this;
  }

  [[nodiscard]] std::string Pickle() const {
    return p::Pickle(New(kMetadata, "Metadata",
                         {p::Str("state_dict_metadata"), p::Dict(state), p::Str("planner_data"),
                          planner_data, p::Str("storage_data"), p::Dict(storage), p::All(more)}));
  }
};

/// Returns planner_data: names and their paths, of strs and ints in opcodes.
inline std::string Paths(
    const std::vector<std::pair<std::string, std::vector<std::string>>>& paths) {
  std::vector<std::string> pairs;
  for (const auto& [fqn, parts] : paths) {
    pairs.push_back(p::Str(fqn));
    pairs.push_back(p::Tuple(parts));
  }
  return p::Dict(pairs);
}

}  // namespace varve::test::dcp
