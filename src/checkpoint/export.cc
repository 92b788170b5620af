// Export to one safetensors file: tensor after tensor, each in slabs of rows that fit a small
// buffer, written to a hidden part file that is renamed when durable.

#include <algorithm>

#include <fnmatch.h>

#include "base/bytes.h"
#include "base/checked.h"
#include "checkpoint/names.h"
#include "format/json_writer.h"
#include "tensor/box.h"
#include "varve/catalogue.h"
#include "varve/checkpoint.h"

namespace varve {
namespace {

constexpr std::uint64_t kSlabBytes = std::uint64_t{32} << 20;

bool Included(const std::vector<std::string>& globs, const std::string& name) {
  return globs.empty() || std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
           return GlobMatch(glob, name);
         });
}

/// The tensor cut along its outermost dimension into boxes of at most kSlabBytes (or one row).
std::vector<Box> Slabs(const TensorMetadata& tensor) {
  const Box whole = WholeBox(tensor.shape);
  const std::uint64_t bytes = Volume(tensor.shape) * ItemSize(tensor.dtype);
  if (bytes == 0) {
    return {};
  }
  if (bytes <= kSlabBytes || tensor.shape.empty()) {
    return {whole};
  }
  // Cut the outermost dimension; while one of its slices is still too large, cut the next.
  std::vector<Box> slabs{whole};
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::vector<Box> next;
    for (const Box& slab : slabs) {
      const std::uint64_t slice = Volume(slab.sizes) * ItemSize(tensor.dtype) / slab.sizes[d];
      const std::uint64_t rows = std::clamp<std::uint64_t>(
          kSlabBytes / std::max<std::uint64_t>(slice, 1), 1, slab.sizes[d]);
      for (std::uint64_t at = 0; at < slab.sizes[d]; at += rows) {
        Box piece = slab;
        piece.offsets[d] += at;
        piece.sizes[d] = std::min(rows, slab.sizes[d] - at);
        next.push_back(std::move(piece));
      }
    }
    slabs = std::move(next);
    if (Volume(slabs.front().sizes) * ItemSize(tensor.dtype) <= kSlabBytes) {
      break;
    }
  }
  return slabs;
}

std::string EncodeSafetensorsHeader(const std::vector<const TensorMetadata*>& tensors,
                                    std::uint64_t* data_bytes) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  std::uint64_t at = 0;
  for (const TensorMetadata* tensor : tensors) {
    const std::uint64_t bytes = Volume(tensor->shape) * ItemSize(tensor->dtype);
    Dims shape = tensor->shape;
    if (tensor->dtype == DType::kFloat4E2M1FNX2) {
      shape.back() *= 2;  // safetensors counts single 4-bit values.
    }
    json += ",";
    AppendJsonString(tensor->fqn, &json);
    json += ":{\"dtype\":\"" + std::string(*SafetensorsName(tensor->dtype)) + "\",\"shape\":";
    AppendJsonDims(shape, &json);
    json += ",\"data_offsets\":[" + std::to_string(at) + "," + std::to_string(at + bytes) + "]}";
    at += bytes;
  }
  json += "}";
  json.append(RoundUp(json.size(), 8) - json.size(), ' ');
  Bytes header;
  ByteWriter out(&header);
  out.U64(json.size());
  out.Raw(json);
  *data_bytes = at;
  return header;
}

/// Writes the header and all tensors to the file `part` and makes it durable.
Status WritePart(CheckpointReader& reader, const std::vector<const TensorMetadata*>& tensors,
                 const std::string& header, std::uint64_t data_bytes,
                 const ProgressFunction& progress, const std::string& part) {
  VARVE_ASSIGN_OR_RETURN(
      const auto file,
      PosixStorage().OpenForWrite(part, {.size = header.size() + data_bytes, .exclusive = false}));
  VARVE_RETURN_IF_ERROR(file->WriteAt(0, AsByteSpan(header)));
  std::uint64_t at = header.size();
  std::vector<std::byte> slab;
  for (const TensorMetadata* tensor : tensors) {
    for (const Box& box : Slabs(*tensor)) {
      slab.resize(Volume(box.sizes) * ItemSize(tensor->dtype));
      const TargetTensor target{tensor->fqn, tensor->dtype, tensor->shape, box, slab.data(), {}};
      VARVE_RETURN_IF_ERROR(reader.ReadTensors({&target, 1}, {}).status());
      VARVE_RETURN_IF_ERROR(file->WriteAt(at, slab));
      at += slab.size();
      if (progress) {
        progress(at - header.size(), data_bytes);
      }
    }
  }
  return file->Sync(at);
}

}  // namespace

bool GlobMatch(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

Result<ExportReport> ExportSafetensors(const std::string& path, const std::string& out,
                                       const ExportOptions& options, Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path, storage));
  ExportReport report;
  std::vector<const TensorMetadata*> tensors;
  for (const TensorMetadata& tensor : reader->metadata().tensors) {
    if (!Included(options.include, tensor.fqn)) {
      continue;
    }
    const bool nameable = SafetensorsName(tensor.dtype).has_value() &&
                          !(tensor.dtype == DType::kFloat4E2M1FNX2 && tensor.shape.empty());
    if (nameable) {
      tensors.push_back(&tensor);
    } else {
      report.skipped.push_back(tensor.fqn);
    }
  }
  if (tensors.empty()) {
    return NotFound("export " + path + ": no tensor matches");
  }
  // Largest elements first, so that every tensor starts aligned for its type.
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorMetadata* a, const TensorMetadata* b) {
                     return ItemSize(a->dtype) > ItemSize(b->dtype);
                   });
  std::uint64_t data_bytes = 0;
  const std::string header = EncodeSafetensorsHeader(tensors, &data_bytes);
  Storage& local = PosixStorage();
  if (!options.overwrite && local.OpenForRead(out).ok()) {
    return AlreadyExists(out + " exists; pass overwrite to replace it");
  }
  const auto lock = local.Lock(LockPath(out));  // Two exports must not share the part file.
  if (lock.status().code() == StatusCode::kFailedPrecondition) {
    return FailedPrecondition("another export to " + out + " is under way");
  }
  const std::string part = PartPath(ParentPath(out), BaseName(out));
  Status status = WritePart(*reader, tensors, header, data_bytes, options.progress, part);
  if (status.ok()) {
    status =
        local.Rename(part, out, options.overwrite ? RenameMode::kReplace : RenameMode::kNoReplace);
  }
  if (!status.ok()) {
    (void)local.Remove(part);  // As large as the model; the first error is the one to tell.
    return status.Annotate("export " + path);
  }
  VARVE_RETURN_IF_ERROR(local.SyncDirectory(ParentPath(out)));
  report.tensor_count = tensors.size();
  report.bytes = header.size() + data_bytes;
  return report;
}

}  // namespace varve
