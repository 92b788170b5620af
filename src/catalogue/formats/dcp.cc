// PyTorch Distributed Checkpoint: a directory with `.metadata`, or with the `__R.metadata` of ranks
// 0 to the last (saved without collectives). Where both are there, all ranks' index counts.

#include "catalogue/formats/dcp.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "catalogue/chunk_source.h"
#include "catalogue/formats/opening.h"
#include "catalogue/names.h"
#include "interop/dcp/checksums.h"
#include "interop/dcp/metadata.h"
#include "interop/dcp/structure.h"
#include "interop/torch/archive.h"

namespace varve {
namespace {

Result<Decoded> DecodeIndexFile(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(storage, path, kMaxIndexBytes));
  DcpAttributeList attributes;
  auto decoded = DecodeDcpMetadata(bytes, &attributes);
  if (!decoded.ok()) {
    return decoded.status().Annotate(path + ": this index cannot be read");
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

std::string RankIndexName(std::uint64_t rank) {
  return "__" + std::to_string(rank) + std::string(kDcpIndexName);
}

/// Returns R of "__R.metadata", or nothing.
std::optional<std::uint32_t> RankOfIndex(std::string_view name) {
  constexpr std::string_view kPrefix = "__";
  if (!name.starts_with(kPrefix) || !name.ends_with(kDcpIndexName)) {
    return std::nullopt;
  }
  const std::string_view digits =
      name.substr(kPrefix.size(), name.size() - kPrefix.size() - kDcpIndexName.size());
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return error == std::errc{} && end == digits.data() + digits.size() && !digits.empty()
             ? std::optional(rank)
             : std::nullopt;
}

std::vector<std::uint32_t> RanksOf(const ListedFolder& folder) {
  std::vector<std::uint32_t> ranks;
  for (const DirectoryEntry& entry : folder.entries) {
    if (const auto rank = RankOfIndex(entry.name); rank && !entry.is_directory) {
      ranks.push_back(*rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

/// Returns the data directory of the save that wrote an index; empty where there is none: the files
/// lie beside the index.
std::string DataDirectoryIn(const Metadata& metadata) {
  return !metadata.files.empty()        ? DataDirectoryOf(metadata.files.front().name)
         : !metadata.side_files.empty() ? DataDirectoryOf(metadata.side_files.front().name)
                                        : std::string();
}

/// Side files lie in the data directory, which is no part of the names that they were saved under.
void TakeOffSideFiles(const std::string& directory, OpenedIndex* opened) {
  for (StoredFile& file : opened->metadata.side_files) {
    if (file.name.starts_with(directory + "/")) {
      file.name.erase(0, directory.size() + 1);
    }
  }
  opened->side_directory = JoinPath(opened->directory, directory);
}

// A list of ints takes about five bytes for each.
constexpr std::uint64_t kMaxParamsBytes = std::uint64_t{64} << 20;

Result<Value> ReadDcpValue(const ListedFolder& folder, const Metadata& metadata,
                           const Extent& extent) {
  VARVE_ASSIGN_OR_RETURN(auto file, folder.storage.OpenForRead(
                                        JoinPath(folder.path, metadata.files[extent.file].name)));
  VARVE_ASSIGN_OR_RETURN(std::string bytes,
                         ReadFromFile(std::move(file))(extent.begin, extent.end - extent.begin));
  if (extent.encoding == Encoding::kZstdTorchItem) {
    VARVE_ASSIGN_OR_RETURN(bytes, DecompressArchive(bytes, kMaxParamsBytes));
  }
  return ReadValueItem(bytes);
}

/// Returns true when the first of the values that has items lists ints, as an optimizer's `params`
/// does where its state has ints for keys. A file that cannot be read counts as nothing here: who
/// loads it is told.
bool ListInts(const ListedFolder& folder, const Metadata& metadata,
              const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const ObjectMetadata* const object = metadata.FindObject(name);
    if (object == nullptr || object->extent.end - object->extent.begin > kMaxParamsBytes) {
      continue;
    }
    const auto value = ReadDcpValue(folder, metadata, object->extent);
    if (value.ok() && value->kind == ValueKind::kList && !value->items.empty()) {
      return std::all_of(value->items.begin(), value->items.end(),
                         [](const Value& item) { return item.kind == ValueKind::kInt; });
    }
  }
  return false;
}

/// An overwrite may replace the index and remove the old one's data directory between two of our
/// reads (publish/index_commit.cc): an index that then names another one shows that this is no
/// damage.
Result<OpenedIndex> OpenOfAllRanks(const ListedFolder& folder) {
  constexpr int kTries = 5;
  std::string last;
  Status missing;
  for (int i = 0; i < kTries; ++i) {
    VARVE_ASSIGN_OR_RETURN(Decoded decoded, ReadDcpIndex(folder.storage, folder.path));
    const std::string directory = DataDirectoryIn(decoded.metadata);
    if (i > 0 && directory == last) {
      break;
    }
    last = directory;
    auto opened = OpenedDcp(folder, std::move(decoded));
    if (opened.ok() && !directory.empty()) {
      TakeOffSideFiles(directory, &*opened);
    }
    if (directory.empty() || opened.status().code() != StatusCode::kDataLoss) {
      return opened;
    }
    missing = opened.status();
  }
  return missing;
}

Result<OpenedIndex> OpenRankLocalDcp(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckIsUploaded(folder));
  const std::vector<std::uint32_t> ranks = RanksOf(folder);
  const std::string& directory = folder.path;
  std::vector<Decoded> by_rank;
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r] != r) {
      return FailedPrecondition(directory + " is incomplete: " + RankIndexName(r) + " is missing")
          .With({.reason = ErrorReason::kIncomplete});
    }
    VARVE_ASSIGN_OR_RETURN(Decoded decoded,
                           DecodeIndexFile(folder.storage, JoinPath(directory, RankIndexName(r))));
    by_rank.push_back(std::move(decoded));
  }
  auto merged = MergeRankLocalDcp(std::move(by_rank));
  if (!merged.ok()) {
    return merged.status().Annotate(directory);
  }
  return OpenedDcp(folder, std::move(*merged));
}

Result<OpenedIndex> OpenDcp(const ListedFolder& folder) {
  return folder.HasFile(kDcpIndexName) ? OpenOfAllRanks(folder) : OpenRankLocalDcp(folder);
}

constexpr std::string_view kDcpIndex[] = {kDcpIndexName, "__#.metadata"};
// An index is renamed from its name with `.tmp`, by torch too.
constexpr std::string_view kDcpNames[] = {".metadata.tmp", "__#.metadata.tmp", "*.distcp"};

}  // namespace

Result<OpenedIndex> OpenedDcp(const ListedFolder& folder, Decoded decoded) {
  const bool keys_are_text = decoded.keys_are_text;
  auto in_blocks = std::move(decoded.in_blocks);
  VARVE_ASSIGN_OR_RETURN(OpenedIndex opened, OpenedWithSizes(folder, std::move(decoded)));
  if (!in_blocks.empty()) {
    VARVE_RETURN_IF_ERROR(PlaceBlocks(folder, std::move(in_blocks), &opened));
  }
  if (keys_are_text && opened.structure) {
    for (const DcpOptimizer& optimizer : FindDcpOptimizers(&*opened.structure)) {
      if (ListInts(folder, opened.metadata, optimizer.params)) {
        NumberKeys(optimizer.state);
      }
    }
  }
  return opened;
}

Result<Decoded> ReadDcpIndex(Storage& storage, const std::string& directory) {
  return DecodeIndexFile(storage, JoinPath(directory, kDcpIndexName));
}

bool IsDcpIndexName(std::string_view name) {
  return name == kDcpIndexName || RankOfIndex(name).has_value();
}

bool IsDcpName(std::string_view name) { return kDcpKnown.Owns(name); }

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

const KnownFormat kDcpKnown{.format = Format::kDcp,
                            .recognises =
                                [](const ListedFolder& folder) {
                                  return folder.HasFile(kDcpIndexName) || !RanksOf(folder).empty();
                                },
                            .open = OpenDcp,
                            .index = kDcpIndex,
                            .names = kDcpNames,
                            .names_in_index = NamesInDcpIndex,
                            .looked_for = kDcpIndex};

}  // namespace varve
