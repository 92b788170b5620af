/// Conversion of any checkpoint to any format, and the comparison of two.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "varve/checkpoint.h"
#include "varve/metadata.h"
#include "varve/options.h"
#include "varve/status.h"
#include "varve/storage.h"
#include "varve/tensor.h"

namespace varve {

/// The format that Convert writes.
enum class ConvertTarget : std::uint8_t {
  kVarve,        ///< A native checkpoint.
  kDcp,          ///< A PyTorch Distributed Checkpoint that stock PyTorch opens.
  kSafetensors,  ///< One safetensors file. Tensors only.
  kHf,           ///< A folder as Hugging Face's tools write it: files of at most `shard_size` and
                 ///< `model.safetensors.index.json`. Tensors only.
  kTorch,        ///< One file as torch.save writes it, which torch.load opens.
};

struct ConvertOptions {
  ConvertTarget to = ConvertTarget::kVarve;
  /// Cast tensors of float16, bfloat16, float32 and float64 to this one of them.
  std::optional<DType> dtype;
  std::uint64_t shard_size = 5'000'000'000;  ///< Bytes of a file's tensors; kHf only.
  /// Globs over names, each of which has to match one; empty means all.
  std::vector<std::string> include;
  std::vector<std::string> exclude;  ///< Globs over names.
  /// A name that begins with the first gets the second in its place; the first pair that fits is
  /// applied, to what include and exclude have left. Each has to fit a name of the checkpoint. A
  /// converted state with renamed entries is flat.
  std::vector<std::pair<std::string, std::string>> rename;
  /// kHf without `include`: false writes the model only. That is the first of the entries "model",
  /// "module", "model_state_dict" and "state_dict" that is a container of tensors: of the top
  /// level, else of the one entry of it that has a model and an optimizer. Without `rename` it is
  /// written under the names that are in it ("model.a.w" becomes "a.w"). Where there is none, all
  /// but the entries whose name begins with "optim" are written.
  bool everything = false;
  /// Only what lies under this key, or these keys joined with dots, under the names that are in it:
  /// "model.a.w" becomes "a.w", unless `rename` is given. Empty for all.
  std::string part;
  bool overwrite = false;
  /// kHf only: a directory whose configuration and tokenizer files (docs/other-formats.md) are
  /// copied into the folder; empty for none.
  std::string hf_config;
  std::uint64_t memory_budget = std::uint64_t{1} << 30;  ///< For tensor bytes in flight.
  ProgressFunction progress;
  /// Ends the conversion with Cancelled, after the current read and write: no target becomes
  /// visible, and files under hidden names are removed. Has no effect once all bytes are written.
  std::stop_token stop;
};

struct ConvertReport {
  std::uint64_t tensor_count = 0;
  std::uint64_t object_count = 0;
  std::uint64_t bytes = 0;             ///< Of all files written.
  std::vector<std::string> skipped;    ///< Tensors whose type the format cannot hold.
  std::uint64_t objects_left_out = 0;  ///< Plain values, which safetensors cannot hold.
  /// Entries that are not part of the model, see ConvertOptions::everything, or of no file of an
  /// unsharded checkpoint: each entry of the top level with its counts, "optim: 12 tensors, 3
  /// values".
  std::vector<std::string> left_out;
  /// Names under which the ranks that saved the source held different values. The target has the
  /// lowest rank's.
  std::vector<std::string> merged{};
  /// Classes that the target does not keep, each with its number of entries and the first of them.
  /// Of a tensor that is made of others it has these, of an object its plain value.
  std::vector<std::string> classes_left_out{};
  std::vector<std::string> files;    ///< Side files that were copied.
  std::uint64_t files_left_out = 0;  ///< Side files, which a single file cannot hold.
};

/// Reads the configuration and tokenizer files of a Hugging Face folder (docs/other-formats.md).
/// Errors: NotFound when `directory` has none; InvalidArgument when they are too large.
Result<std::vector<SideFile>> ReadHfConfig(const std::string& directory,
                                           Storage& storage = AnyStorage());

/// Writes the checkpoint at `source` (of any format Varve opens) to `target` in another. Tensors
/// stream through bounded memory, every checksum of the source is checked on the way, and `target`
/// appears whole or not at all. Errors: as CheckpointReader::Open and Save; AlreadyExists without
/// overwrite; NotFound when nothing is selected; InvalidArgument when two names become one, or for
/// a dtype that nothing is cast to.
Result<ConvertReport> Convert(const std::string& source, const std::string& target,
                              const ConvertOptions& options, Storage& storage = AnyStorage());

struct UnshardOptions {
  ConvertTarget to = ConvertTarget::kTorch;
  bool model_only = false;
  /// kTorch only: the model's and the optimizer's files are `model.safetensors` and
  /// `optim.safetensors`, in OLMo's dialect: a tensor's key is base64 of the pickle of its path,
  /// and a plain value is a uint8 tensor that holds its pickle.
  bool olmo_safetensors = false;
  std::optional<DType> dtype;  ///< As in ConvertOptions; casts the model, not the optimizer.
  std::uint64_t shard_size = 5'000'000'000;  ///< As in ConvertOptions.
  bool overwrite = false;
  std::uint64_t memory_budget = std::uint64_t{1} << 30;
  ProgressFunction progress;
  std::stop_token stop;
};

/// Writes a sharded checkpoint of any layout unsharded. kTorch writes a directory: the model's
/// state dict as `model.pt`, the optimizer's as `optim.pt`, the trainer's state (rank 0's) as
/// `train.pt`, and last `config.yaml` where the source has one: what OLMo calls an unsharded
/// checkpoint. The other targets are those of Convert, without what single ranks keep for
/// themselves
/// (`train/rank{R}`). Streams and appears as Convert's targets do. Errors: as Convert;
/// InvalidArgument for a source that holds no model.
Result<ConvertReport> Unshard(const std::string& source, const std::string& target,
                              const UnshardOptions& options, Storage& storage = AnyStorage());

/// The difference of one tensor or value between two checkpoints.
struct Difference {
  enum class Kind : std::uint8_t {
    kOnlyInA,
    kOnlyInB,
    kShape,   ///< Shapes differ, or one is a tensor and the other a plain value.
    kDType,   ///< Types differ; the numbers below compare the values.
    kValues,  ///< Same shape and type, other bytes.
  };
  std::string fqn;
  Kind kind = Kind::kValues;
  std::string detail;           ///< "float32[4, 4] and float32[4, 5]"; of plain values both.
  std::uint64_t elements = 0;   ///< Of the tensor.
  std::uint64_t differing = 0;  ///< Elements whose value differs; NaN equals NaN.
  double max_abs_error = 0;     ///< Over finite pairs; infinite where only one is finite.
  double max_rel_error = 0;     ///< |a - b| / max(|a|, |b|).
};

struct DiffReport {
  std::vector<Difference> differences;  ///< By fqn.
  std::uint64_t equal_tensors = 0;
  std::uint64_t equal_objects = 0;
};

/// Compares any two checkpoints by name. Plain values are equal when Varve encodes them alike.
/// Returns Cancelled soon after `stop` is requested.
Result<DiffReport> Diff(const std::string& a, const std::string& b, Storage& storage = AnyStorage(),
                        const ProgressFunction& progress = {}, const std::stop_token& stop = {});

}  // namespace varve
