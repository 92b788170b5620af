// One file of any known kind, recognised by its content.

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "catalogue/family.h"
#include "catalogue/formats.h"
#include "catalogue/formats/opening.h"
#include "catalogue/names.h"
#include "catalogue/open.h"
#include "interop/safetensors/decode.h"
#include "interop/torch/state_reader.h"

namespace varve {
namespace {

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

using namespace std::string_view_literals;

struct Sign {
  std::size_t at;
  std::string_view bytes;
  std::string_view meaning;
};

constexpr auto kSigns = std::to_array<Sign>({
    {0, "\x93NUMPY"sv, "a NumPy array (.npy)"},
    {0, "GGUF"sv, "a GGUF model (.gguf)"},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file (.h5)"},
    {0, "PK\x03\x04"sv, "a zip archive (.zip)"},
    {0, "PK\x05\x06"sv, "an empty zip archive (.zip)"},
    {257, "ustar"sv, "a tar archive (.tar)"},
    {0, "\x1f\x8b"sv, "a gzip file (.gz)"},
    {0, "\x28\xb5\x2f\xfd"sv, "a Zstandard file (.zst)"},
    {0, "\xfd\x37zXZ"sv, "an xz file (.xz)"},
    {0, "BZh"sv, "a bzip2 file (.bz2)"},
    {0, "PAR1"sv, "a Parquet file"},
    {0, "\x7f\x45LF"sv, "a program or a library"},
});

/// Returns true for bytes without control characters except those of lines and tabs; bytes above
/// ASCII may be UTF-8.
bool IsText(std::string_view head) {
  return !head.empty() && std::all_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 ? byte != 0x7F : c == '\n' || c == '\r' || c == '\t' || c == '\f';
  });
}

bool IsPickle(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

/// Number of bytes of a file that are examined, if the file has as many.
constexpr std::size_t kRevealingBytes = 1024;

/// Returns what a file that begins with `head` looks like: "a NumPy array (.npy)", "text", ...;
/// empty where the bytes do not show it. `name` is looked at where a format has no sign of its own.
std::string_view LooksLike(std::string_view head, std::string_view name) {
  if (head.empty()) {
    return "an empty file";
  }
  for (const Sign& sign : kSigns) {
    if (head.size() > sign.at && head.substr(sign.at).starts_with(sign.bytes)) {
      return sign.meaning;
    }
  }
  // A protobuf of ONNX begins with its version and has no sign of its own.
  if (head[0] == '\x08' && name.ends_with(".onnx")) {
    return "an ONNX model (.onnx)";
  }
  if (IsPickle(head)) {
    return "a pickle that torch.save did not write";
  }
  if (IsText(head)) {
    const std::size_t first = head.find_first_not_of(" \r\n\t");
    const bool json = first != std::string_view::npos && (head[first] == '{' || head[first] == '[');
    return json ? "JSON text" : "text";
  }
  return {};
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

}  // namespace

Result<OpenedIndex> OpenKnownFile(Storage& storage, const std::string& path) {
  auto opened = storage.OpenForRead(path);
  const StatusCode code = opened.status().code();
  if (code == StatusCode::kUnavailable || code == StatusCode::kFailedPrecondition ||
      code == StatusCode::kCancelled || TellsNothing(storage, path, opened.status()) ||
      IsUnread(storage, path, opened.status()) || IsForbidden(opened.status())) {
    return opened.status();  // It may be there.
  }
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
  VARVE_ASSIGN_OR_RETURN(Decoded decoded, content == Content::kSafetensors
                                              ? DecodeSafetensors({{path, size, read}})
                                              : DecodeTorchFile(size, read, path));
  decoded.metadata.files.front().name = name;  // Errors name the path.
  return Opened(ParentPath(path), std::move(decoded));
}

}  // namespace varve
