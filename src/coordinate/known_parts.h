/// Keeps parts of messages by digest, so that ranks send each part once.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "varve/hash.h"

namespace varve {

class Agreements;  // save/plans/agreements.h

/// Keeps byte strings by their digests (Xxh3), on the rank that received them: the next message may
/// have the digest alone. They have at most `most_bytes`, with 256 each for their places; those go
/// first that were not asked for the longest. Threads: any.
class KnownParts {
 public:
  explicit KnownParts(std::size_t most_bytes = std::size_t{16} << 20) : most_bytes_(most_bytes) {}

  /// Returns the string with a digest; nothing where it is not kept.
  std::optional<std::string> Find(const Hash128& digest);
  /// Keeps a string whose digest the caller has computed. One above the limit is not kept.
  void Keep(const Hash128& digest, std::string_view bytes);

  /// Returns what the ranks have agreed on in earlier saves. `make` makes it at the first call.
  std::shared_ptr<Agreements> AgreementsOr(
      const std::function<std::shared_ptr<Agreements>()>& make);

 private:
  using Entries = std::list<std::pair<Hash128, std::string>>;

  const std::size_t most_bytes_;
  std::mutex mutex_;
  std::size_t bytes_ = 0;  // All below are guarded by mutex_.
  Entries entries_;        // The one asked for last is the first.
  std::map<Hash128, Entries::iterator> by_digest_;
  std::shared_ptr<Agreements> agreements_;
};

}  // namespace varve
