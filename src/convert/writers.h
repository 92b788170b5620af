/// Types and functions that the writers of Convert share: the selection, and its way into a file.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "convert/model_part.h"
#include "interop/state_tree.h"
#include "load/tensor_stream.h"
#include "pipeline/file_writer.h"
#include "varve/checkpoint.h"
#include "varve/convert.h"

namespace varve {

struct SelectedTensor {
  std::string fqn;  ///< In the target.
  StreamItem item;
};

struct SelectedObject {
  std::string fqn;
  std::string encoded;
};

/// Collects the classes that a target does not keep: of a tensor that is made of others it has
/// these, of an object its plain value.
class LeftOutClasses {
 public:
  /// `plain_values`: the target has plain values, and no class of theirs.
  explicit LeftOutClasses(bool plain_values) : plain_values_(plain_values) {}

  /// Adds the classes in a structure, or in what lies at `name` of one.
  void AddStructure(const Value& structure, const std::string& name, bool root);
  void AddValue(const Value& value, const std::string& name);

  /// Returns a line for each class: `pkg.Class of 2 entries, the first is "optim.a"`.
  [[nodiscard]] std::vector<std::string> Describe() const;

 private:
  struct Noted {
    std::uint64_t count = 0;
    std::string first;
  };
  void Note(const Value& value, const std::string& name);

  bool plain_values_;
  std::map<std::string, Noted> by_class_;
};

struct Selection {
  std::vector<SelectedTensor> tensors;
  std::vector<SelectedObject> objects;
  std::string structure;            ///< Encoded; empty when names are flat.
  ModelPart model;                  ///< The part that was selected from.
  std::vector<std::string> merged;  ///< Names of the source that have several values.
  std::vector<std::string> classes_left_out;
  [[nodiscard]] std::uint64_t tensor_bytes() const;
};

/// Applies include, exclude, rename and dtype. Errors: see Convert.
Result<Selection> Select(CheckpointReader& reader, const ConvertOptions& options);

/// Returns the name of what lies under `key` of the container `parent`, which is the root if `root`
/// is true.
std::string NameBelow(const std::string& parent, bool root, const std::string& key);

/// A stream over selected tensors, in the order given, and the segments of their bytes. The
/// segments refer to the stream; both live until the file is written.
class SelectedStream {
 public:
  SelectedStream(CheckpointReader& reader, const std::vector<const SelectedTensor*>& tensors,
                 const ConvertOptions& options, std::uint64_t total_bytes);
  /// Returns the bytes of tensor `i` of those given.
  [[nodiscard]] ProduceFunction Bytes(std::size_t i);

 private:
  TensorStream stream_;
  const ProgressFunction& progress_;
  std::uint64_t total_bytes_;
  std::uint64_t done_ = 0;
};

/// Writes segments one after the other into a new file and makes it durable; returns its size, and
/// sets `*sums`, unless that is null, to the CRC-32C of its blocks of kDefaultBlockBytes. Errors:
/// Cancelled on `stop`, and then a part of the file is there.
Result<std::uint64_t> WriteSegmentsFile(Storage& storage, const std::string& path,
                                        const std::vector<FileSegment>& segments,
                                        const std::stop_token& stop,
                                        std::vector<std::uint32_t>* sums = nullptr);

/// Writes the segments of one file and returns its size.
using SegmentWriter = std::function<Result<std::uint64_t>(const std::vector<FileSegment>&)>;

/// Writes one file of torch.save with `write`, which is called once.
Result<ConvertReport> WriteTorchFile(CheckpointReader& reader, const Selection& selection,
                                     const ConvertOptions& options, const SegmentWriter& write);

/// Writes the state as OLMo's dialect of safetensors (interop/olmo/dialect.h) with `write`, which
/// is called once. Errors: as FlattenForOlmo; Unimplemented for a tensor of a type that safetensors
/// has not.
Result<ConvertReport> WriteOlmoSafetensors(CheckpointReader& reader, const Selection& selection,
                                           const ConvertOptions& options,
                                           const SegmentWriter& write);

/// Returns the state that is selected: containers, values in their places, and for each tensor a
/// kTensorLeaf whose text is its number in the selection. Errors: DataLoss; Unimplemented for a
/// value that a pickle of plain values cannot hold.
Result<Value> WholeState(const Selection& selection);

// The writers.
Result<ConvertReport> ConvertBySaving(CheckpointReader& reader, const Selection& selection,
                                      const std::string& target, const ConvertOptions& options,
                                      Storage& storage);
Result<ConvertReport> ConvertToSafetensors(CheckpointReader& reader, const Selection& selection,
                                           const std::string& target, const ConvertOptions& options,
                                           Storage& storage);
Result<ConvertReport> ConvertToHf(CheckpointReader& reader, const Selection& selection,
                                  const std::string& target, const ConvertOptions& options,
                                  Storage& storage);
Result<ConvertReport> ConvertToTorch(CheckpointReader& reader, const Selection& selection,
                                     const std::string& target, const ConvertOptions& options,
                                     Storage& storage);

/// Reads the side files of a checkpoint, in memory, all but a `model.safetensors.index.json`, which
/// names the data files of the source, and the note of a step of a run. Errors: DataLoss.
Result<std::vector<SideFile>> ReadSideFiles(CheckpointReader& reader);

/// Returns the text of a `config.json` with this dtype wherever it states that of the model or of a
/// part, such as the text model; what is no JSON object stays as it is. A model that states none
/// gets that of its tensors.
std::string WithDType(const std::string& config, DType dtype);

/// Names of files.
std::vector<std::string> NamesOf(const std::vector<SideFile>& files);

/// Writes a file that appears whole or not at all: `segments` go into a hidden file beside `name`,
/// or beside what the symbolic link of that name leads to, which then takes its place. Returns its
/// size. Errors: AlreadyExists without `options.overwrite`; FailedPrecondition when another process
/// is writing it this way; Cancelled on `options.stop`.
Result<std::uint64_t> PublishFile(Storage& storage, const std::string& name,
                                  const ConvertOptions& options,
                                  const std::vector<FileSegment>& segments);

}  // namespace varve
