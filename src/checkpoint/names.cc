#include "checkpoint/names.h"

#include <array>
#include <charconv>
#include <cstdio>

#include "varve/storage.h"

namespace varve {
namespace {

constexpr std::string_view kLockSuffix = ".varve-lock";
constexpr std::string_view kStagingInfix = ".varve-saving-";
constexpr std::string_view kTalkInfix = ".varve-talk-";
constexpr std::string_view kAsideSuffix = ".varve-old";
constexpr std::string_view kFailedSuffix = ".varve-failed";
constexpr std::string_view kPartSuffix = ".varve-part";
constexpr std::string_view kRankLockPrefix = ".rank-";

std::string Sibling(std::string_view path, std::string_view suffix) {
  return JoinPath(ParentPath(path), "." + BaseName(path) + std::string(suffix));
}

}  // namespace

std::string LockPath(std::string_view path) { return Sibling(path, kLockSuffix); }

std::string StagingPath(std::string_view path, const SaveId& id) {
  return Sibling(path, std::string(kStagingInfix) + ToString(id).substr(0, 12));
}

std::string TalkPath(std::string_view path, const SaveId& id) {
  return Sibling(path, std::string(kTalkInfix) + ToString(id).substr(0, 12));
}

std::string AsidePath(std::string_view path) { return Sibling(path, kAsideSuffix); }

std::string FailedPath(std::string_view path) { return Sibling(path, kFailedSuffix); }

std::string RankLockPath(std::string_view directory, std::uint32_t rank) {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), ".rank-%05u.varve-lock", rank);
  return JoinPath(directory, name.data());
}

std::string PartPath(std::string_view directory, std::string_view file) {
  return JoinPath(directory, "." + std::string(file) + std::string(kPartSuffix));
}

std::optional<std::uint32_t> PartRank(std::string_view entry) {
  constexpr std::string_view kPrefix = ".data-";
  if (!entry.starts_with(kPrefix) || !entry.ends_with(kPartSuffix)) {
    return std::nullopt;
  }
  std::uint32_t rank = 0;
  const auto parsed =
      std::from_chars(entry.data() + kPrefix.size(), entry.data() + entry.size(), rank);
  return parsed.ec == std::errc() ? std::optional(rank) : std::nullopt;
}

bool IsRankLock(std::string_view entry) {
  return entry.starts_with(kRankLockPrefix) && entry.ends_with(kLockSuffix);
}

std::optional<Leftover> ParseLeftover(std::string_view entry) {
  if (entry.size() < 2 || entry[0] != '.') {
    return std::nullopt;
  }
  entry.remove_prefix(1);
  struct Suffix {
    std::string_view text;
    LeftoverKind kind;
  };
  for (const Suffix& suffix :
       {Suffix{kLockSuffix, LeftoverKind::kLock}, Suffix{kAsideSuffix, LeftoverKind::kAside},
        Suffix{kPartSuffix, LeftoverKind::kPart}, Suffix{kFailedSuffix, LeftoverKind::kFailed}}) {
    if (entry.size() > suffix.text.size() && entry.ends_with(suffix.text)) {
      entry.remove_suffix(suffix.text.size());
      return Leftover{suffix.kind, std::string(entry)};
    }
  }
  for (const Suffix& infix :
       {Suffix{kStagingInfix, LeftoverKind::kStaging}, Suffix{kTalkInfix, LeftoverKind::kTalk}}) {
    const std::size_t at = entry.rfind(infix.text);
    if (at != std::string_view::npos && at > 0) {
      return Leftover{infix.kind, std::string(entry.substr(0, at))};
    }
  }
  return std::nullopt;
}

bool IsDataFileName(std::string_view name) {
  return name.starts_with("data-") && name.ends_with(".safetensors");
}

}  // namespace varve
