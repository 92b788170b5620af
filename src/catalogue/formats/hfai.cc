// hfai.checkpoint 2.0.0: a directory of parts, `PART_000.pt` and so on, one of each rank.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catalogue/formats/opening.h"
#include "interop/hfai/merge.h"
#include "interop/hfai/names.h"
#include "interop/hfai/part.h"

namespace varve {
namespace {

/// Returns the numbers of the parts, in order.
std::vector<std::uint32_t> PartsOf(const ListedFolder& folder) {
  std::vector<std::uint32_t> numbers;
  for (const DirectoryEntry& entry : folder.entries) {
    if (const auto number = HfaiPartNumber(entry.name); number && !entry.is_directory) {
      numbers.push_back(*number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/// Returns the names of files that hfai's load would count as parts and that are none.
std::vector<std::string> OddNames(const ListedFolder& folder) {
  std::vector<std::string> names;
  for (const DirectoryEntry& entry : folder.entries) {
    if (LooksLikeHfaiPart(entry.name) && (entry.is_directory || !HfaiPartNumber(entry.name))) {
      names.push_back(entry.name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Decodes the parts with these numbers. Of several errors it returns that of the lowest part.
Result<std::vector<HfaiPart>> DecodeParts(const ListedFolder& folder,
                                          const std::vector<std::uint32_t>& numbers) {
  std::vector<std::string> names;
  names.reserve(numbers.size());
  for (const std::uint32_t number : numbers) {
    names.push_back(HfaiPartName(number));
  }
  std::vector<HfaiPart> parts(numbers.size());
  std::vector<Status> failures(numbers.size());
  VARVE_RETURN_IF_ERROR(ForEachFile(
      folder.storage, folder.path, names, [&](std::size_t i, const NamedFile& file) -> Status {
        auto part = DecodeHfaiPart(file.size, file.read, numbers[i], static_cast<std::uint32_t>(i));
        failures[i] = part.status();
        if (part.ok()) {
          parts[i] = *std::move(part);
        }
        return Status::Ok();
      }));
  for (const Status& failure : failures) {
    VARVE_RETURN_IF_ERROR(failure);
  }
  return parts;
}

Result<Decoded> DecodeFolder(const ListedFolder& folder) {
  VARVE_ASSIGN_OR_RETURN(std::vector<HfaiPart> parts, DecodeParts(folder, PartsOf(folder)));
  VARVE_RETURN_IF_ERROR(CheckHfaiParts(parts, OddNames(folder)));
  return MergeHfaiParts(std::move(parts));
}

Result<OpenedIndex> OpenHfai(const ListedFolder& folder) {
  VARVE_RETURN_IF_ERROR(CheckIsUploaded(folder));
  auto decoded = DecodeFolder(folder);
  if (!decoded.ok()) {
    return decoded.status().Annotate(folder.path);
  }
  VARVE_RETURN_IF_ERROR(CheckExtents(folder.path, decoded->metadata));
  return Opened(folder.path, *std::move(decoded));
}

constexpr std::string_view kParts[] = {"PART_###.pt"};

}  // namespace

const KnownFormat kHfaiKnown{
    .format = Format::kHfai,
    .recognises = [](const ListedFolder& folder) { return !PartsOf(folder).empty(); },
    .open = OpenHfai,
    .names = kParts,
    .looked_for = kParts};

}  // namespace varve
