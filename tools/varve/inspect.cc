#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/nearest.h"
#include "json.h"
#include "subtrees.h"
#include "text.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "verbs.h"
#include "wrapped.h"

namespace varve::cli {
namespace {

constexpr const char* kHelp =
    "Shows what a checkpoint holds: who saved it, its files, its tensors and its plain values. A\n"
    "tensor is stored as chunks, one for each shard that some rank held; --tensor shows where each\n"
    "lies: its box in the whole tensor (half-open per dimension), its file, the bytes [begin, end)\n"
    "there, and the XXH3-128 hash of its content, by which equal chunks of different checkpoints\n"
    "are known.\n"
    "\n"
    "Ranks may have held different values under one name. Then \"values\" says how many are stored;\n"
    "what is shown is the value of the lowest of those ranks.\n"
    "\n"
    "Where the files of other software store an entry under another path (OLMo: optimizer state by\n"
    "parameter id, names with FSDP's prefixes), it is shown as \"stored as\".\n"
    "\n"
    "Names are in natural order (layers.2 before layers.10); subtrees are totals of all tensors whose\n"
    "names begin alike.\n"
    "\n"
    "Reads the index and the plain values. No pickle is ever opened.";

struct Options {
  std::string path;
  std::optional<std::string> tensor;  ///< The one to show.
  bool json = false;
};

// Enough for any number or short list, and a row stays a row.
constexpr std::size_t kValueChars = 100;
constexpr std::size_t kValueCharsJson = 4096;

std::uint64_t Size(const Extent& extent) {
  return extent.encoding == Encoding::kInline ? 0 : extent.end - extent.begin;
}

/// Returns the numbers of tensors or objects, in the order of their names.
template <class Named>
std::vector<std::size_t> InNaturalOrder(const std::vector<Named>& named) {
  std::vector<std::size_t> order(named.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return NaturalLess(named[a].fqn, named[b].fqn); });
  return order;
}

/// Returns the path that the checkpoint's own files give an entry; nothing where it is the FQN.
std::optional<std::string> StoredName(const CheckpointReader& reader, const std::string& fqn) {
  const auto& names = reader.stored_names();
  const auto found = std::lower_bound(
      names.begin(), names.end(), fqn,
      [](const auto& entry, const std::string& wanted) { return entry.first < wanted; });
  return found != names.end() && found->first == fqn ? std::optional(found->second) : std::nullopt;
}

Json StoredNameAsJson(const CheckpointReader& reader, const std::string& fqn) {
  const auto stored = StoredName(reader, fqn);
  return If(stored.has_value(), stored.value_or(""));
}

bool IsNative(const Metadata& metadata) { return metadata.format == Format::kVarve; }

/// A plain value as text, or why there is none.
struct Rendered {
  bool readable = false;
  std::string text;
};

Rendered Render(const Value& value, std::size_t max_chars) {
  return {true, ToString(value, max_chars)};
}

/// Reads the values of all objects. One damaged block must not hide the values that lie elsewhere.
std::vector<Rendered> ReadValues(CheckpointReader& reader, std::size_t max_chars) {
  std::vector<std::string> names;
  for (const ObjectMetadata& object : reader.metadata().objects) {
    names.push_back(object.fqn);
  }
  std::vector<Rendered> rendered;
  if (const auto values = reader.ReadObjects(names); values.ok()) {
    for (const Value& value : *values) {
      rendered.push_back(Render(value, max_chars));
    }
    return rendered;
  }
  for (const std::string& name : names) {
    const auto value = reader.ReadObjects({&name, 1});
    rendered.push_back(value.ok() ? Render(value->front(), max_chars)
                                  : Rendered{false, value.status().message()});
  }
  return rendered;
}

/// The numbers of values that are stored under each name.
class Several {
 public:
  explicit Several(const Metadata& metadata)
      : metadata_(metadata), several_(metadata.SeveralValues()) {}
  [[nodiscard]] bool OfTensors() const { return !metadata_.tensor_variants.empty(); }
  [[nodiscard]] bool OfObjects() const { return !metadata_.object_variants.empty(); }
  [[nodiscard]] std::size_t Of(const std::string& fqn) const {
    const auto found = several_.find(fqn);
    return found == several_.end() ? 1 : found->second;
  }

 private:
  const Metadata& metadata_;
  const std::map<std::string, std::size_t, std::less<>> several_;
};

// ---- the whole checkpoint ----

std::string CheckpointAsJson(const Options& options, CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  const Several several(metadata);
  Json files = Json::array();
  for (const DataFile& file : metadata.files) {
    files.push_back({{"name", file.name},
                     {"rank", file.rank},
                     {"bytes", file.size},
                     {"data_begin", file.data_begin}});
  }
  Json side_files = Json::array();
  for (const StoredFile& file : metadata.side_files) {
    side_files.push_back({{"name", file.name}, {"bytes", file.size}});
  }
  Json subtrees = Json::array();
  for (const Subtree& subtree : Subtrees(metadata)) {
    subtrees.push_back(
        {{"name", subtree.name}, {"tensors", subtree.tensor_count}, {"bytes", subtree.bytes}});
  }
  Json tensors = Json::array();
  for (const std::size_t i : InNaturalOrder(metadata.tensors)) {
    const TensorMetadata& tensor = metadata.tensors[i];
    tensors.push_back({{"fqn", tensor.fqn},
                       {"dtype", DTypeName(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"chunks", tensor.chunks.size()},
                       {"bytes", StoredBytes(tensor)},
                       {"values", several.Of(tensor.fqn)},
                       {"stored_name", StoredNameAsJson(reader, tensor.fqn)}});
  }
  Json wrapped = Json::array();
  for (const WrappedTensor& tensor : WrappedTensors(reader)) {
    wrapped.push_back({{"fqn", tensor.fqn}, {"class", tensor.of_class}, {"inner", tensor.inner}});
  }
  Json objects = Json::array();
  const std::vector<Rendered> values = ReadValues(reader, kValueCharsJson);
  for (const std::size_t i : InNaturalOrder(metadata.objects)) {
    const ObjectMetadata& object = metadata.objects[i];
    objects.push_back({{"fqn", object.fqn},
                       {"bytes", Size(object.extent)},
                       {"value", If(values[i].readable, values[i].text)},
                       {"problem", If(!values[i].readable, values[i].text)},
                       {"values", several.Of(object.fqn)},
                       {"stored_name", StoredNameAsJson(reader, object.fqn)}});
  }
  return ToLine({{"checkpoint", options.path},
                 {"directory", reader.directory()},
                 {"format", FormatName(metadata.format)},
                 {"format_version", If(IsNative(metadata), reader.format_version())},
                 {"save_id", If(IsNative(metadata), ToString(metadata.save_id))},
                 {"world_size", metadata.world_size},
                 {"block_bytes", metadata.block_bytes},
                 {"total_bytes", metadata.TotalBytes()},
                 {"tensor_bytes", StoredBytes(metadata)},
                 {"files", std::move(files)},
                 {"side_files", std::move(side_files)},
                 {"subtrees", std::move(subtrees)},
                 {"tensors", std::move(tensors)},
                 {"wrapped", std::move(wrapped)},
                 {"objects", std::move(objects)}});
}

/// Files of whole tensors do not tell which ranks have written them, nor how many.
bool TellsRanks(const Metadata& metadata) { return metadata.format != Format::kSafetensors; }

std::string FilesTable(const Metadata& metadata) {
  Table table({{"rank", Table::Align::kRight}, {"file"}, {"size", Table::Align::kRight}});
  for (const DataFile& file : metadata.files) {
    table.Add({TellsRanks(metadata) ? std::to_string(file.rank) : "-", file.name,
               FormatBytes(file.size)});
  }
  return table.ToString();
}

std::string SideFilesTable(const Metadata& metadata) {
  Table table({{"side file"}, {"size", Table::Align::kRight}});
  for (const StoredFile& file : metadata.side_files) {
    table.Add({file.name, FormatBytes(file.size)});
  }
  return table.ToString();
}

std::string SubtreesTable(const std::vector<Subtree>& subtrees) {
  Table table({{"subtree"}, {"tensors", Table::Align::kRight}, {"bytes", Table::Align::kRight}});
  for (const Subtree& subtree : subtrees) {
    table.Add({subtree.name, std::to_string(subtree.tensor_count), FormatBytes(subtree.bytes)});
  }
  return table.ToString();
}

std::string WrappedTable(const std::vector<WrappedTensor>& wrapped) {
  Table table({{"made of others"}, {"class"}, {"inner tensors"}});
  for (const WrappedTensor& tensor : wrapped) {
    std::string inner;
    for (const std::string& name : tensor.inner) {
      inner += (inner.empty() ? "" : ", ") + name;
    }
    table.Add({tensor.fqn, tensor.of_class, inner});
  }
  return table.ToString();
}

std::string TensorsTable(const CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  std::vector<Table::Column> columns{{"tensor"},
                                     {"dtype"},
                                     {"shape"},
                                     {"chunks", Table::Align::kRight},
                                     {"bytes", Table::Align::kRight}};
  const Several several(metadata);
  if (several.OfTensors()) {
    columns.push_back({"values", Table::Align::kRight});
  }
  const bool renamed = !reader.stored_names().empty();
  if (renamed) {
    columns.push_back({"stored as"});
  }
  Table table(std::move(columns));
  for (const std::size_t i : InNaturalOrder(metadata.tensors)) {
    const TensorMetadata& tensor = metadata.tensors[i];
    std::vector<std::string> row{tensor.fqn, std::string(DTypeName(tensor.dtype)),
                                 ToString(tensor.shape), std::to_string(tensor.chunks.size()),
                                 FormatBytes(StoredBytes(tensor))};
    if (several.OfTensors()) {
      row.push_back(std::to_string(several.Of(tensor.fqn)));
    }
    if (renamed) {
      row.push_back(StoredName(reader, tensor.fqn).value_or("-"));
    }
    table.Add(row);
  }
  return table.ToString();
}

std::string ObjectsTable(CheckpointReader& reader) {
  const std::vector<ObjectMetadata>& objects = reader.metadata().objects;
  std::vector<Table::Column> columns{{"object"}, {"value"}};
  const Several several(reader.metadata());
  if (several.OfObjects()) {
    columns.push_back({"values", Table::Align::kRight});
  }
  const bool renamed = std::any_of(objects.begin(), objects.end(), [&](const auto& object) {
    return StoredName(reader, object.fqn).has_value();
  });
  if (renamed) {
    columns.push_back({"stored as"});
  }
  Table table(std::move(columns));
  const std::vector<Rendered> values = ReadValues(reader, kValueChars);
  for (const std::size_t i : InNaturalOrder(objects)) {
    std::vector<std::string> row{objects[i].fqn, values[i].readable
                                                     ? values[i].text
                                                     : "(unreadable: " + values[i].text + ")"};
    if (several.OfObjects()) {
      row.push_back(std::to_string(several.Of(objects[i].fqn)));
    }
    if (renamed) {
      row.push_back(StoredName(reader, objects[i].fqn).value_or("-"));
    }
    table.Add(row);
  }
  return table.ToString();
}

std::string CheckpointAsText(const Options& options, CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  std::string text = "checkpoint  " + Printable(options.path) + "\n";
  if (reader.directory() != options.path) {
    text += "directory   " + Printable(reader.directory()) + "\n";
  }
  text += "format      " + std::string(FormatName(metadata.format)) +
          (IsNative(metadata) ? " " + std::to_string(reader.format_version()) : "") + "\n";
  if (TellsRanks(metadata)) {
    text += "save        " + (IsNative(metadata) ? ToString(metadata.save_id) + ", by " : "by ") +
            Count(metadata.world_size, "rank") + "\n";
  }
  text +=
      "size        " + FormatBytes(metadata.TotalBytes()) + " in " +
      Count(metadata.files.size(), "file") +
      (metadata.block_bytes > 0 ? ", a checksum every " + FormatBytes(metadata.block_bytes) : "") +
      "\n";
  text += "holds       " + Count(metadata.tensors.size(), "tensor") + " (" +
          FormatBytes(StoredBytes(metadata)) + "), " + Count(metadata.objects.size(), "object") +
          "\n";
  text += "\n" + FilesTable(metadata);
  text += metadata.side_files.empty() ? "" : "\n" + SideFilesTable(metadata);
  const std::vector<Subtree> subtrees = Subtrees(metadata);
  text += subtrees.empty() ? "" : "\n" + SubtreesTable(subtrees);
  text += metadata.tensors.empty() ? "" : "\n" + TensorsTable(reader);
  const std::vector<WrappedTensor> wrapped = WrappedTensors(reader);
  text += wrapped.empty() ? "" : "\n" + WrappedTable(wrapped);
  text += metadata.objects.empty() ? "" : "\n" + ObjectsTable(reader);
  return text;
}

// ---- one tensor ----

std::string TensorAsJson(const CheckpointReader& reader, const TensorMetadata& tensor) {
  const Metadata& metadata = reader.metadata();
  Json chunks = Json::array();
  for (const Chunk& chunk : tensor.chunks) {
    chunks.push_back({{"offsets", chunk.box.offsets},
                      {"sizes", chunk.box.sizes},
                      {"file", metadata.files[chunk.extent.file].name},
                      {"begin", chunk.extent.begin},
                      {"end", chunk.extent.end},
                      {"xxh3", If(IsNative(metadata), Hex(chunk.content.bytes))}});
  }
  return ToLine({{"fqn", tensor.fqn},
                 {"dtype", DTypeName(tensor.dtype)},
                 {"shape", tensor.shape},
                 {"bytes", StoredBytes(tensor)},
                 {"stored_name", StoredNameAsJson(reader, tensor.fqn)},
                 {"chunks", std::move(chunks)}});
}

std::string TensorAsText(const CheckpointReader& reader, const TensorMetadata& tensor) {
  const Metadata& metadata = reader.metadata();
  std::string text = "tensor  " + Printable(tensor.fqn) + "\n";
  if (const auto stored = StoredName(reader, tensor.fqn)) {
    text += "stored  " + Printable(*stored) + "\n";
  }
  text += "dtype   " + std::string(DTypeName(tensor.dtype)) + "\n";
  text += "shape   " + ToString(tensor.shape) + "\n";
  text += "bytes   " + FormatBytes(StoredBytes(tensor)) + " in " +
          Count(tensor.chunks.size(), "chunk") + "\n\n";
  Table table({{"chunk", Table::Align::kRight}, {"box"}, {"file"}, {"extent"}, {"xxh3"}});
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    const Chunk& chunk = tensor.chunks[i];
    table.Add(
        {std::to_string(i), ToString(chunk.box), metadata.files[chunk.extent.file].name,
         "[" + std::to_string(chunk.extent.begin) + ", " + std::to_string(chunk.extent.end) + ")",
         IsNative(metadata) ? Hex(chunk.content.bytes) : "-"});
  }
  return text + table.ToString();
}

/// Returns what a name is that is no tensor's, and what may be meant.
std::string WhyNoTensor(const Metadata& metadata, const std::string& name) {
  const std::string quoted = "\"" + name + "\"";
  if (metadata.FindObject(name) != nullptr) {
    return quoted + " is a plain value, not a tensor";
  }
  std::vector<std::string> names;
  for (const TensorMetadata& tensor : metadata.tensors) {
    if (tensor.fqn.starts_with(name + ".")) {
      return quoted + " is a subtree, not a tensor; it has \"" + tensor.fqn + "\"";
    }
    names.push_back(tensor.fqn);
  }
  const std::string nearest = NearestToGlob(name, names);
  return "no tensor " + quoted + (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?");
}

Result<Outcome> Run(const Options& options) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(options.path));
  if (!options.tensor) {
    return Outcome{options.json ? CheckpointAsJson(options, *reader)
                                : CheckpointAsText(options, *reader)};
  }
  const TensorMetadata* const tensor = reader->metadata().FindTensor(*options.tensor);
  if (tensor == nullptr) {
    return NotFound(options.path + ": " + WhyNoTensor(reader->metadata(), *options.tensor));
  }
  VARVE_ASSIGN_OR_RETURN(const TensorMetadata hashed, reader->WithHashes(*tensor));
  return Outcome{options.json ? TensorAsJson(*reader, hashed) : TensorAsText(*reader, hashed)};
}

}  // namespace

void AddInspect(Command program) {
  Command verb = program.Add("inspect", "Show what a checkpoint holds", kHelp);
  const auto options = std::make_shared<Options>();
  verb.Positional("CKPT", &options->path, "A checkpoint directory");
  verb.Option("--tensor", "FQN", &options->tensor, "Show the chunks of this tensor instead");
  verb.Flag("--json", &options->json, "An object with everything that is shown");
  verb.Runs([=] { return Run(*options); });
}

}  // namespace varve::cli
