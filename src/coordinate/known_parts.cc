#include "coordinate/known_parts.h"

namespace varve {
namespace {

constexpr std::size_t kPlaceBytes = 256;  // Of the nodes of the list and of the map.

}  // namespace

std::optional<std::string> KnownParts::Find(const Hash128& digest) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_digest_.find(digest);
  if (found == by_digest_.end()) {
    return std::nullopt;
  }
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void KnownParts::Keep(const Hash128& digest, std::string_view bytes) {
  const std::scoped_lock lock(mutex_);
  const std::size_t taken = bytes.size() + kPlaceBytes;
  if (taken > most_bytes_ || by_digest_.contains(digest)) {
    return;
  }
  Entries entry;
  entry.emplace_front(digest, bytes);
  by_digest_.emplace(digest, entry.begin());  // Nothing below needs memory.
  entries_.splice(entries_.begin(), entry);
  bytes_ += taken;
  while (bytes_ > most_bytes_) {
    bytes_ -= entries_.back().second.size() + kPlaceBytes;
    by_digest_.erase(entries_.back().first);
    entries_.pop_back();
  }
}

std::shared_ptr<Agreements> KnownParts::AgreementsOr(
    const std::function<std::shared_ptr<Agreements>()>& make) {
  const std::scoped_lock lock(mutex_);
  if (agreements_ == nullptr) {
    agreements_ = make();
  }
  return agreements_;
}

}  // namespace varve
