#include "catalogue/foreign.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "catalogue/names.h"
#include "catalogue/unknown_file.h"
#include "interop/dcp/checksums.h"
#include "interop/dcp/metadata.h"
#include "interop/safetensors/decode.h"
#include "interop/torch/archive.h"
#include "interop/torch/file.h"
#include "tensor/box.h"

namespace varve {
namespace {

constexpr std::string_view kDcpIndex = ".metadata";
// A million chunks take 175 MB.
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{8} << 30;
constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{1} << 30;
// A block of zstd gives at most 128 KiB and takes at least four bytes.
constexpr std::uint64_t kMaxZstdRatio = std::uint64_t{32} << 10;

/// Keeps the file open for as long as the reader is used.
RangeReader ReadFromFile(std::shared_ptr<ReadableFile> file) {
  return [file = std::move(file)](std::uint64_t begin, std::uint64_t size) -> Result<std::string> {
    std::string bytes(size, '\0');
    VARVE_RETURN_IF_ERROR(
        file->ReadAt(begin, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
    return bytes;
  };
}

/// Sets a file's size. An index that Varve wrote holds sizes, which are compared; without them the
/// file's own size counts.
Status SetSize(const std::string& directory, std::uint64_t size, DataFile* file) {
  if (!file->block_crc32c.empty() && file->size != size) {
    return DataLoss(JoinPath(directory, file->name) + ": " + std::to_string(size) +
                    " bytes instead of " + std::to_string(file->size));
  }
  file->size = size;
  return Status::Ok();
}

/// Fills in the sizes that storage has of the files that an index names.
Status FillSizes(Storage& storage, const std::string& directory,
                 const std::vector<DirectoryEntry>& entries, Metadata* metadata) {
  for (DataFile& file : metadata->files) {
    if (const DirectoryEntry* const found = FindEntry(entries, file.name); found != nullptr) {
      VARVE_RETURN_IF_ERROR(SetSize(directory, found->size, &file));
      continue;
    }
    auto opened = storage.OpenForRead(JoinPath(directory, file.name));  // In a folder below.
    if (!opened.ok()) {
      return opened.status().code() == StatusCode::kNotFound
                 ? DataLoss(JoinPath(directory, file.name) + " is missing")
                 : opened.status();
    }
    VARVE_RETURN_IF_ERROR(SetSize(directory, (*opened)->size(), &file));
  }
  return Status::Ok();
}

Status CheckExtents(const std::string& directory, const Metadata& metadata) {
  const auto check = [&](const Extent& extent, const std::string& fqn) {
    if (extent.encoding == Encoding::kInline || extent.end <= metadata.files[extent.file].size) {
      return Status::Ok();
    }
    const DataFile& file = metadata.files[extent.file];
    return DataLoss(JoinPath(directory, file.name) + " has " + std::to_string(file.size) +
                    " bytes, but \"" + fqn + "\" is stored at [" + std::to_string(extent.begin) +
                    ", " + std::to_string(extent.end) + ")");
  };
  for (const TensorMetadata& tensor : metadata.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      VARVE_RETURN_IF_ERROR(check(chunk.extent, tensor.fqn));
      const std::uint64_t bytes = Volume(chunk.box.sizes) * ItemSize(tensor.dtype);
      const std::uint64_t stored = chunk.extent.end - chunk.extent.begin;
      const bool is_zstd = chunk.extent.encoding == Encoding::kZstdTorchItem;
      if (bytes > kAnyTensorBytes && bytes / (is_zstd ? kMaxZstdRatio : kMaxRepeats) > stored) {
        return DataLoss("tensor \"" + tensor.fqn + "\": the " + std::to_string(bytes) +
                        " bytes of " + ToString(chunk.box) + " cannot come from the " +
                        std::to_string(stored) + " that are stored");
      }
    }
  }
  for (const ObjectMetadata& object : metadata.objects) {
    VARVE_RETURN_IF_ERROR(check(object.extent, object.fqn));
  }
  return Status::Ok();
}

OpenedIndex Opened(std::string directory, Decoded decoded) {
  OpenedIndex opened;
  opened.directory = std::move(directory);
  opened.metadata = std::move(decoded.metadata);
  opened.structure = std::move(decoded.structure);
  opened.inline_values = std::move(decoded.inline_values);
  opened.records = std::move(decoded.records);
  std::sort(opened.records.begin(), opened.records.end(),
            [](const RecordCrc& a, const RecordCrc& b) {
              return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
            });
  return opened;
}

Result<OpenedIndex> OpenDirectory(Storage& storage, const std::string& directory,
                                  const std::vector<DirectoryEntry>& entries, Decoded decoded) {
  VARVE_RETURN_IF_ERROR(FillSizes(storage, directory, entries, &decoded.metadata));
  VARVE_RETURN_IF_ERROR(CheckExtents(directory, decoded.metadata));
  return Opened(directory, std::move(decoded));
}

Result<Decoded> DecodeIndexFile(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(storage, path, kMaxIndexBytes));
  DcpAttributeList attributes;
  auto decoded = DecodeDcpMetadata(bytes, &attributes);
  if (!decoded.ok()) {
    return decoded.status().Annotate(path);
  }
  const auto sums = std::find_if(attributes.begin(), attributes.end(), [](const auto& attribute) {
    return attribute.first == kDcpChecksums;
  });
  Status status;
  if (sums != attributes.end()) {
    status = ApplyDcpChecksums(bytes, sums->second, &decoded->metadata);
  } else if (HoldsDcpChecksums(bytes)) {
    status = DataLoss("the index is damaged: its checksums are not where they belong");
  }
  if (!status.ok()) {
    return status.Annotate(path);
  }
  return decoded;
}

/// Returns R of "__R.metadata", or nothing.
std::optional<std::uint32_t> RankOfIndex(std::string_view name) {
  constexpr std::string_view kPrefix = "__";
  if (!name.starts_with(kPrefix) || !name.ends_with(kDcpIndex)) {
    return std::nullopt;
  }
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kDcpIndex.size());
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return error == std::errc{} && end == digits.data() + digits.size() && !digits.empty()
             ? std::optional(rank)
             : std::nullopt;
}

Result<OpenedIndex> OpenRankLocalDcp(Storage& storage, const std::string& directory,
                                     const std::vector<DirectoryEntry>& entries,
                                     std::vector<std::uint32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<Decoded> by_rank;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] != r) {
      return FailedPrecondition(directory + " is incomplete: __" + std::to_string(r) +
                                ".metadata is missing");
    }
    VARVE_ASSIGN_OR_RETURN(
        Decoded decoded,
        DecodeIndexFile(storage, JoinPath(directory, "__" + std::to_string(r) + ".metadata")));
    by_rank.push_back(std::move(decoded));
  }
  auto merged = MergeRankLocalDcp(std::move(by_rank));
  if (!merged.ok()) {
    return merged.status().Annotate(directory);
  }
  return OpenDirectory(storage, directory, entries, std::move(*merged));
}

Result<std::vector<NamedFile>> OpenAll(Storage& storage, const std::string& directory,
                                       const std::vector<std::string>& names) {
  std::vector<NamedFile> files;
  for (const std::string& name : names) {
    auto file = storage.OpenForRead(JoinPath(directory, name));
    if (!file.ok()) {
      return file.status().code() == StatusCode::kNotFound
                 ? DataLoss(JoinPath(directory, name) + " is missing")
                 : file.status();
    }
    const std::uint64_t size = (*file)->size();
    files.push_back({name, size, ReadFromFile(std::move(*file))});
  }
  return files;
}

Result<OpenedIndex> OpenHfFolder(Storage& storage, const std::string& directory) {
  const std::string path = JoinPath(directory, kHfIndexName);
  VARVE_ASSIGN_OR_RETURN(const std::string json, ReadWholeFile(storage, path, kMaxJsonBytes));
  auto index = DecodeHfIndex(json);
  if (!index.ok()) {
    return index.status().Annotate(path);
  }
  VARVE_ASSIGN_OR_RETURN(const auto files, OpenAll(storage, directory, index->FileNames()));
  auto decoded = DecodeHfFolder(*index, files);
  if (!decoded.ok()) {
    return decoded.status().Annotate(directory);
  }
  return Opened(directory, std::move(*decoded));
}

Result<OpenedIndex> OpenSafetensorsFiles(Storage& storage, const std::string& directory,
                                         const std::vector<std::string>& names) {
  VARVE_ASSIGN_OR_RETURN(const auto files, OpenAll(storage, directory, names));
  auto decoded = DecodeSafetensors(files);
  if (!decoded.ok()) {
    return decoded.status().Annotate(directory);
  }
  return Opened(directory, std::move(*decoded));
}

Result<OpenedIndex> OpenForeignDirectory(Storage& storage, const std::string& path,
                                         const std::vector<DirectoryEntry>& entries) {
  bool dcp = false;
  bool hf = false;
  std::vector<std::uint32_t> ranks;
  std::vector<std::string> safetensors;
  for (const DirectoryEntry& entry : entries) {
    if (entry.is_directory) {
      continue;
    }
    dcp = dcp || entry.name == kDcpIndex;
    hf = hf || entry.name == kHfIndexName;
    if (const auto rank = RankOfIndex(entry.name)) {
      ranks.push_back(*rank);
    }
    if (entry.name.ends_with(".safetensors") && entry.name[0] != '.') {
      safetensors.push_back(entry.name);
    }
  }
  if (dcp) {
    VARVE_ASSIGN_OR_RETURN(Decoded decoded, DecodeIndexFile(storage, JoinPath(path, kDcpIndex)));
    return OpenDirectory(storage, path, entries, std::move(decoded));
  }
  if (!ranks.empty()) {
    return OpenRankLocalDcp(storage, path, entries, std::move(ranks));
  }
  if (hf) {
    return OpenHfFolder(storage, path);
  }
  if (!safetensors.empty()) {
    return OpenSafetensorsFiles(storage, path, safetensors);
  }
  return NotFound(path + " holds no checkpoint that Varve knows");
}

/// The kind of a file, by its first bytes.
enum class Content : std::uint8_t { kZip, kLegacyTorch, kSafetensors, kOther };

Content Sniff(std::string_view head) {
  constexpr std::string_view kZip = "PK\x03\x04";
  // A pickle of protocol 2 or more that begins with an int of ten bytes: torch's magic number.
  constexpr std::string_view kMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  if (head.starts_with(kZip)) {
    return Content::kZip;
  }
  if (head.size() > 14 && head[0] == '\x80' && head.substr(2, kMagic.size()) == kMagic) {
    return Content::kLegacyTorch;
  }
  // Eight bytes of length, then JSON. The eight of a text would be a length beyond all bounds.
  ByteReader in(head);
  const bool json = in.U64() <= kMaxJsonBytes && in.U8() == '{';
  return json && !in.failed() ? Content::kSafetensors : Content::kOther;
}

/// Returns NotFound for a file that is no checkpoint. Returns Ok for a zip file that torch.save may
/// have written, or that is damaged.
Status NotOurs(const std::string& path, std::string_view looks_like) {
  return NotFound(path + " is not a checkpoint: " +
                  (looks_like.empty() ? "it is of no kind that Varve knows"
                                      : "it looks like " + std::string(looks_like)));
}

/// Returns the name of the first record of a zip file that begins with `head`.
std::string FirstRecordName(std::string_view head) {
  constexpr std::size_t kHeaderBytes = 30;
  constexpr std::size_t kNameLength = 26;  // Where it stands, in two bytes.
  if (head.size() < kHeaderBytes) {
    return {};
  }
  const auto low = static_cast<unsigned char>(head[kNameLength]);
  const auto high = static_cast<unsigned char>(head[kNameLength + 1]);
  return std::string(head.substr(kHeaderBytes, low + 256U * high));
}

bool IsPickleOfTorch(std::string_view name) {
  return name == "data.pkl" || name.ends_with("/data.pkl") || name.ends_with("/constants.pkl");
}

/// Returns the kind of a zip file that has no record "FOLDER/data.pkl" as torch.save writes it.
/// Empty where it has one, or where the directory cannot be read: the decoder then reports the
/// damage.
std::string_view OtherZip(std::string_view head, std::uint64_t size, const RangeReader& read) {
  std::vector<std::string> names;
  if (const auto records = ReadZipDirectory(size, read); records.ok()) {
    for (const ZipRecord& record : *records) {
      names.push_back(record.name);
    }
  } else if (records.status().code() == StatusCode::kUnimplemented) {
    names.push_back(FirstRecordName(head));  // Compressed, as no file of torch.save is.
  } else {
    return {};
  }
  if (std::any_of(names.begin(), names.end(), IsPickleOfTorch)) {
    return {};
  }
  const bool arrays =
      !names.empty() && std::all_of(names.begin(), names.end(),
                                    [](const std::string& name) { return name.ends_with(".npy"); });
  return arrays ? "NumPy arrays (.npz)" : "a zip archive (.zip)";
}

Result<OpenedIndex> OpenForeignFile(Storage& storage, const std::string& path) {
  auto opened = storage.OpenForRead(path);
  if (!opened.ok()) {
    return NotFound(
        path + " is neither a directory nor a file that can be read: " + opened.status().message());
  }
  const std::shared_ptr<ReadableFile> file = std::move(*opened);
  const std::uint64_t size = file->size();
  const RangeReader read = ReadFromFile(file);
  VARVE_ASSIGN_OR_RETURN(const std::string head,
                         read(0, std::min<std::uint64_t>(size, kRevealingBytes)));
  const std::string name = BaseName(path);
  Content content = Sniff(head);
  if (content == Content::kOther) {
    const std::string_view looks_like = LooksLike(head, name);
    if (!looks_like.empty() || !name.ends_with(".safetensors")) {
      return NotOurs(path, looks_like);
    }
    content = Content::kSafetensors;  // Its header says so: it is damaged.
  }
  if (content == Content::kZip) {
    if (const auto other = OtherZip(head, size, read); !other.empty()) {
      return NotOurs(path, other);
    }
  }
  auto decoded = content == Content::kSafetensors ? DecodeSafetensors({{name, size, read}})
                                                  : DecodeTorchFile(size, read, name);
  if (!decoded.ok()) {
    return decoded.status().Annotate(path);
  }
  return Opened(ParentPath(path), std::move(*decoded));
}

}  // namespace

Result<OpenedIndex> OpenForeign(Storage& storage, const std::string& path) {
  const auto entries = storage.List(path);
  if (entries.ok()) {
    return OpenForeignDirectory(storage, path, *entries);
  }
  return entries.status().code() == StatusCode::kNotFound ? entries.status()
                                                          : OpenForeignFile(storage, path);
}

bool IsDcpIndexName(std::string_view name) {
  return name == kDcpIndex || RankOfIndex(name).has_value();
}

Result<std::vector<std::string>> NamesInDcpIndex(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const Decoded decoded, DecodeIndexFile(storage, path));
  std::vector<std::string> names;
  names.reserve(decoded.metadata.files.size() + decoded.metadata.side_files.size());
  for (const DataFile& file : decoded.metadata.files) {
    names.push_back(file.name);
  }
  for (const StoredFile& file : decoded.metadata.side_files) {
    names.push_back(file.name);
  }
  return names;
}

Result<std::vector<std::string>> ForeignFileNames(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  std::vector<std::string> names;
  bool is_dcp = false;  // Its index may name nothing; the other one is then the user's.
  for (const DirectoryEntry& entry : entries) {
    if (!entry.is_directory && IsDcpIndexName(entry.name)) {
      is_dcp = true;
      VARVE_ASSIGN_OR_RETURN(const auto named,
                             NamesInDcpIndex(storage, JoinPath(directory, entry.name)));
      names.insert(names.end(), named.begin(), named.end());
    }
  }
  if (!is_dcp && HasHfIndex(entries)) {
    const std::string path = JoinPath(directory, kHfIndexName);
    VARVE_ASSIGN_OR_RETURN(const std::string json, ReadWholeFile(storage, path, kMaxJsonBytes));
    VARVE_ASSIGN_OR_RETURN(const HfIndex index, DecodeHfIndex(json));
    names = index.FileNames();
  }
  return names;
}

bool HasHfIndex(const std::vector<DirectoryEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(),
                     [](const DirectoryEntry& entry) { return entry.name == kHfIndexName; });
}

}  // namespace varve
