// Which parts there are, which there should be, and the message about the difference.

#include <algorithm>
#include <cstdint>

#include "interop/hfai/merge.h"
#include "interop/hfai/names.h"

namespace varve {
namespace {

constexpr std::size_t kNamed = 10;

/// Returns "A, B and C"; of many, the first ten and how many more there are.
std::string Listed(const std::vector<std::string>& names, std::uint64_t count) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool last = i + 1 == names.size() && count == names.size();
    text += (i == 0 ? "" : last ? " and " : ", ") + names[i];
  }
  return text +
         (count > names.size() ? " and " + std::to_string(count - names.size()) + " more" : "");
}

/// Names of parts, of which the first few are kept.
class Names {
 public:
  void Add(const std::string& name) {
    if (++count_ <= kNamed) {
      names_.push_back(name);
    }
  }
  /// Adds the names of parts [begin, end).
  void AddRange(std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end && names_.size() < kNamed; ++i) {
      names_.push_back(HfaiPartName(i));
    }
    count_ += end - begin;
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::string Text() const { return Listed(names_, count_); }
  [[nodiscard]] std::string_view Verb(std::string_view one, std::string_view many) const {
    return count_ == 1 ? one : many;
  }

 private:
  std::vector<std::string> names_;
  std::uint64_t count_ = 0;
};

std::string Shards(const HfaiPart& part) {
  return "__nshards__ is " + std::to_string(part.nshards);
}

/// Returns the parts that are missing of `world`.
Names Missing(const std::vector<HfaiPart>& parts, std::uint64_t world) {
  Names missing;
  std::uint64_t next = 0;
  for (const HfaiPart& part : parts) {
    if (part.number >= world) {
      break;
    }
    missing.AddRange(next, part.number);
    next = part.number + std::uint64_t{1};
  }
  missing.AddRange(next, std::max(next, world));
  return missing;
}

std::string MissingText(const std::vector<HfaiPart>& parts, const Names& missing,
                        std::uint64_t world) {
  std::string text = missing.Text() + std::string(missing.Verb(" is", " are")) + " missing: ";
  if (parts.front().number != 0) {
    text += "part 0 holds the buffers, the plain values and the groups of the optimizers; ";
  }
  return text + std::to_string(parts.size()) + (parts.size() == 1 ? " part is" : " parts are") +
         " there, __nshards__ says " + std::to_string(world);
}

}  // namespace

Status CheckHfaiParts(const std::vector<HfaiPart>& parts, const std::vector<std::string>& odd) {
  std::vector<std::string> problems;
  if (!odd.empty()) {
    Names names;
    for (const std::string& name : odd) {
      names.Add(name);
    }
    problems.push_back(names.Text() + std::string(names.Verb(" is", " are")) +
                       " no part that hfai writes, but its load would count " +
                       std::string(names.Verb("it", "them")));
  }
  const HfaiPart& first = parts.front();
  const std::uint64_t world = first.nshards;
  Names stale;    // Beyond the world, of another save.
  Names surplus;  // Beyond the world, though they say the same one.
  const HfaiPart* other = nullptr;
  for (const HfaiPart& part : parts) {
    if (part.number < world) {
      if (part.nshards != world && other == nullptr) {
        other = &part;
      }
      continue;
    }
    (part.nshards == world ? surplus : stale).Add(part.name);
  }
  if (other != nullptr) {
    problems.push_back(Shards(first) + " in " + first.name + " and " +
                       std::to_string(other->nshards) + " in " + other->name);
  }
  if (stale.count() > 0) {
    problems.push_back(stale.Text() + std::string(stale.Verb(" belongs", " belong")) +
                       " to another save: " + Shards(parts.back()) + " in " + parts.back().name +
                       " and " + std::to_string(world) + " in " + first.name);
  }
  if (surplus.count() > 0) {
    problems.push_back(surplus.Text() + std::string(surplus.Verb(" is", " are")) +
                       " surplus: " + Shards(first));
  }
  const bool mixed = !problems.empty();
  const Names missing = Missing(parts, world);
  if (missing.count() > 0) {
    problems.push_back(MissingText(parts, missing, world));
  }
  if (problems.empty()) {
    return Status::Ok();
  }
  std::string text = problems[0];
  for (std::size_t i = 1; i < problems.size(); ++i) {
    text += "; " + problems[i];
  }
  return mixed ? DataLoss(text)
               : FailedPrecondition(text).With({.reason = ErrorReason::kIncomplete});
}

}  // namespace varve
