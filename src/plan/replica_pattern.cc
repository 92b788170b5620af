#include "plan/replica_pattern.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"

namespace varve {
namespace {

/// Adds as numbers of two words: the order of what is added is of no account.
void AddTo(Hash128* sum, const Hash128& hash) {
  for (std::size_t at = 0; at < sum->bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    std::memcpy(&a, sum->bytes.data() + at, sizeof(a));
    std::memcpy(&b, hash.bytes.data() + at, sizeof(b));
    a += b;
    std::memcpy(sum->bytes.data() + at, &a, sizeof(a));
  }
}

/// Returns a hash of what ranks call the item, and of its content.
Hash128 HashOf(const LocalPlan& plan, std::size_t item, Bytes* room) {
  room->clear();
  ByteWriter out(room);
  Hash128 content;
  if (item < plan.tensors.size()) {
    const PlannedTensor& tensor = plan.tensors[item];
    out.String(tensor.fqn());
    for (const std::uint64_t offset : tensor.box.offsets) {
      out.U64(offset);
    }
    content = ContentOf(tensor);
  } else {
    const ObjectItem& object = plan.objects[item - plan.tensors.size()];
    out.String(object.fqn);
    content = object.content;
  }
  out.Raw({reinterpret_cast<const char*>(content.bytes.data()), content.bytes.size()});
  return Xxh3(AsByteSpan(*room));
}

}  // namespace

Hash128 ContentOf(const PlannedTensor& tensor) {
  Hash128 content;
  std::memcpy(content.bytes.data(), &tensor.fingerprint, sizeof(tensor.fingerprint));
  return content;
}

ReplicaSums SumsOf(const LocalPlan& plan, const ComparedItems& compared) {
  std::map<std::uint64_t, Hash128> groups;
  ReplicaSums sums;
  Bytes room;
  compared.ForEachShared(
      plan.tensors.size() + plan.objects.size(), [&](std::size_t item, std::uint64_t group) {
        if (group != ComparedItems::kDiffers) {
          AddTo(&groups[group], HashOf(plan, item, &room));
        } else if (item < plan.tensors.size()) {
          sums.differing.push_back(ContentOf(plan.tensors[item]));
        } else {
          sums.differing.push_back(plan.objects[item - plan.tensors.size()].content);
        }
      });
  sums.groups.reserve(groups.size());
  for (const auto& [group, sum] : groups) {
    sums.groups.push_back(sum);
  }
  return sums;
}

ReplicaPattern::ReplicaPattern(const std::vector<LocalPlan>& plans) {
  items_.reserve(plans.size());
  for (const LocalPlan& plan : plans) {
    items_.emplace_back(plan.tensors.size() + plan.objects.size(), ComparedItems::kHeldAlone);
  }
}

void ReplicaPattern::Add(std::span<const HeldContent> holders) {
  const bool alike = std::all_of(holders.begin(), holders.end(), [&](const HeldContent& one) {
    return one.content == holders.front().content;
  });
  if (alike) {
    std::vector<std::uint32_t> ranks;
    ranks.reserve(holders.size());
    for (const HeldContent& one : holders) {
      ranks.push_back(one.rank);
    }
    const std::uint64_t next = ComparedItems::kFirstGroup + numbers_.size();
    const std::uint64_t group = numbers_.emplace(std::move(ranks), next).first->second;
    for (const HeldContent& one : holders) {
      items_[one.rank][one.item] = group;
    }
    return;
  }
  std::map<Hash128, std::uint32_t> contents;
  std::vector<Differing>& differing = differing_.emplace_back();
  for (const HeldContent& one : holders) {
    const auto content = static_cast<std::uint32_t>(contents.size());
    differing.push_back({one.rank, one.item, contents.emplace(one.content, content).first->second,
                         one.content != Hash128()});
    items_[one.rank][one.item] = ComparedItems::kDiffers;
  }
}

std::vector<ComparedItems> ReplicaPattern::Finish() {
  std::vector<ComparedItems> compared;
  std::vector<std::map<std::uint32_t, std::uint32_t>> places(items_.size());
  for (std::size_t rank = 0; rank < items_.size(); ++rank) {
    ComparedItems& mine = compared.emplace_back();
    std::set<std::uint64_t> groups;
    for (std::size_t item = 0; item < items_[rank].size(); ++item) {
      const std::uint64_t group = items_[rank][item];
      if (mine.runs.empty() || mine.runs.back().group != group) {
        mine.runs.push_back({0, group});
        if (group >= ComparedItems::kFirstGroup) {
          groups.insert(group);
        }
      }
      ++mine.runs.back().items;
      if (group == ComparedItems::kDiffers) {
        places[rank].emplace(item, static_cast<std::uint32_t>(places[rank].size()));
      }
    }
    if (groups.size() > kMostOfARank || places[rank].size() > kMostOfARank) {
      return {};
    }
    groups_.emplace_back(groups.begin(), groups.end());
  }
  for (std::vector<Differing>& shard : differing_) {
    for (Differing& one : shard) {
      one.item = places[one.rank].at(one.item);
    }
  }
  items_ = {};
  numbers_ = {};
  return compared;
}

bool ReplicaPattern::IsThatOf(const std::vector<ReplicaSums>& sums) const {
  if (sums.size() != groups_.size()) {
    return false;
  }
  std::map<std::uint64_t, const Hash128*> of_groups;
  for (std::size_t rank = 0; rank < sums.size(); ++rank) {
    if (sums[rank].groups.size() != groups_[rank].size()) {
      return false;
    }
    for (std::size_t i = 0; i < groups_[rank].size(); ++i) {
      const Hash128& sum = sums[rank].groups[i];
      if (*of_groups.emplace(groups_[rank][i], &sum).first->second != sum) {
        return false;
      }
    }
  }
  for (const std::vector<Differing>& shard : differing_) {
    std::map<std::uint32_t, Hash128> contents;
    std::set<Hash128> distinct;
    for (const Differing& one : shard) {
      const std::vector<Hash128>& given = sums[one.rank].differing;
      if (one.item >= given.size() || (given[one.item] != Hash128()) != one.is_known ||
          contents.emplace(one.content, given[one.item]).first->second != given[one.item]) {
        return false;
      }
      distinct.insert(given[one.item]);
    }
    if (distinct.size() != contents.size()) {
      return false;
    }
  }
  return true;
}

std::size_t ReplicaPattern::bytes() const {
  constexpr std::size_t kListBytes = 24;
  std::size_t bytes = 0;
  for (const auto& groups : groups_) {
    bytes += kListBytes + groups.size() * sizeof(std::uint64_t);
  }
  for (const auto& shard : differing_) {
    bytes += kListBytes + shard.size() * sizeof(Differing);
  }
  return bytes;
}

bool AreAlikeButForContents(const LocalPlan& a, const LocalPlan& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const PlannedTensor& x, const PlannedTensor& y) {
                      return AreEqual(x.of, y.of) && x.box == y.box && x.tied_to == y.tied_to &&
                             x.part_of == y.part_of;
                    }) &&
         std::equal(a.objects.begin(), a.objects.end(), b.objects.begin(), b.objects.end(),
                    [](const ObjectItem& x, const ObjectItem& y) { return x.fqn == y.fqn; });
}

}  // namespace varve
