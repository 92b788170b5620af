// All ranks are to make the same calls in the same order. A rank that skips one, as when an
// exception of its loop is caught, makes one call fewer than the others. Rank 0 therefore keeps,
// for each other rank, the calls that only one of the two has made since they were last in a call
// together:
//
//  1. The two are in one call if it has the same name on both, and neither has left a call of this
//     name at this place of its sequence. A rank that is late to a call which rank 0 has left has
//     the same name at the same place: it fails alone, and is in step with its next call. Its state
//     is older than what the others save next, so it never joins a later call of that name.
//  2. A call that rank 0 has left without the other rank fails on that rank as soon as it makes it;
//     and the other way round. From there on the two are in step.
//  3. Where each is in a call that the other has not made, one of them has missed a call. The one
//     whose call comes first fails there and goes on; the other waits for it, for a while: names
//     that are made of a clock differ for good, and the training's own collectives wait meanwhile.
//     Of names that differ in their numbers alone, the lower number comes first ("save step-5"
//     before "save step-6"). Else the greater part of the ranks is taken to have missed none, once
//     all have come: their call comes first, and rank 0's where the parts are equal. If the next
//     call is not what the other waits for, then the other's call fails.
//  4. A rank may report that it is past a call without making another one, such as while it waits
//     for the manager of a run. It has missed what comes before, by the numbers.
//
// So a rank that has missed calls costs the others these calls, and the next one has all ranks.
// Where the order was guessed wrong in 3, it costs one call more: then 2 finds the place.

#include "coordinate/channel/calls.h"

#include <algorithm>
#include <utility>

namespace varve {
namespace {

using Kind = CallDecision::Kind;
using Made = Calls::Made;

/// Calls that are remembered of a rank that does not come.
constexpr std::size_t kKept = 64;

void Keep(std::deque<Made>* made, Made one) {
  made->push_back(std::move(one));
  if (made->size() > kKept) {
    made->pop_front();
  }
}

void DropThrough(std::deque<Made>* made, std::size_t place) {
  made->erase(made->begin(), made->begin() + static_cast<std::ptrdiff_t>(place) + 1);
}

std::vector<std::string> NamesOf(const std::deque<Made>& made) {
  std::vector<std::string> names;
  names.reserve(made.size());
  for (const Made& one : made) {
    names.push_back(one.name);
  }
  return names;
}

constexpr const char* kSameCalls =
    "all ranks must make the same calls, of the same names, in the same order";

std::string IsPast(const std::string& missed, const std::string& name) {
  return "has missed " + missed + ", and goes on to " + name + "; " + kSameCalls;
}

std::string Different(const std::string& theirs, const std::string& other, const std::string& name,
                      const std::string& missed_by) {
  return "calls " + theirs + " while " + other + " calls " + name + ", which " + missed_by +
         " has missed; " + kSameCalls;
}

/// Returns which of the calls that one rank has left has a name; nothing where it joins the present
/// one. Where the call that the rank is in now has the name too, only a call at the same place of
/// both sequences, or a later one, counts.
std::optional<std::size_t> PlaceOf(const std::deque<Made>& made, const std::string& name,
                                   std::size_t since, bool present_has_name) {
  for (std::size_t i = present_has_name ? since : 0; i < made.size(); ++i) {
    if (made[i].name == name) {
      return i;
    }
  }
  return {};
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

/// Takes the digits at the beginning of a text, without leading zeros.
std::string_view TakeDigits(std::string_view* text) {
  const auto end = std::find_if_not(text->begin(), text->end(), IsDigit);
  std::string_view digits = text->substr(0, static_cast<std::size_t>(end - text->begin()));
  text->remove_prefix(digits.size());
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

}  // namespace

void Calls::Begin(std::string name) {
  name_ = std::move(name);
  known_to_fail_ = false;
  joined_ = 0;
}

void Calls::End(std::string why, int cause) {
  if (is_undecided()) {
    Keep(&mine_, {std::move(*name_), 0, std::move(why), cause});
  }
  name_.reset();
  joined_ = 0;
}

void Calls::Comes(std::uint64_t number, std::string name) {
  if (number <= newest_) {
    return;
  }
  newest_ = number;
  OtherLeft("has begun another call");
  open_ = Made{std::move(name), number, {}, -1};
  past_.clear();
}

void Calls::Leaves(std::uint64_t number, const std::string& why) {
  if (open_ && open_->number == number) {
    OtherLeft(why);
  }
}

void Calls::OtherLeft(std::string why) {
  if (open_) {
    open_->why = std::move(why);
    Keep(&theirs_, std::move(*open_));
    open_.reset();
  }
}

CallDecision Calls::Decide(std::optional<int> vote) {
  const bool undecided = is_undecided();
  std::optional<std::size_t> late;
  if (undecided) {
    late = PlaceOf(theirs_, *name_, mine_.size(), open_ && open_->name == *name_);
  }
  if (!open_) {
    if (late) {
      return Rank0IsLate(*late);
    }
    if (!undecided || past_.empty() || OrderOfCalls(*name_, past_) >= 0) {
      return {};
    }
    return Rank0Missed(IsPast(*name_, past_));
  }
  // Between rank 0's calls too: of calls that repeat a name, both may have left the first.
  const bool repeats = !name_ && PlaceOf(theirs_, open_->name, 0, false);
  if (const auto behind = PlaceOf(mine_, open_->name, theirs_.size(),
                                  repeats || (undecided && *name_ == open_->name))) {
    return OtherIsLate(*behind);
  }
  if (late) {
    return Rank0IsLate(*late);
  }
  if (!undecided) {
    return {};
  }
  return *name_ == open_->name ? Join() : OneHasMissed(vote);
}

CallDecision Calls::Rank0IsPast(const std::string& name) {
  if (name_ || !open_ || OrderOfCalls(open_->name, name) >= 0) {
    return {};
  }
  CallDecision decision{Kind::kOtherRankFails, IsPast(open_->name, name), open_->number};
  OtherLeft("rank 0 had missed it");
  return decision;
}

CallDecision Calls::Join() {
  CallDecision decision{Kind::kJoined, {}, open_->number, -1, NamesOf(mine_), NamesOf(theirs_)};
  mine_.clear();
  theirs_.clear();
  wrong_ = 0;
  joined_ = open_->number;
  open_.reset();
  return decision;
}

/// The other rank makes a call that rank 0 has left: both have made all calls up to this one.
CallDecision Calls::OtherIsLate(std::size_t place) {
  const Made& left = mine_[place];
  CallDecision decision{Kind::kOtherRankFails, EndedWithoutThisRank(left.why), open_->number,
                        left.cause};
  DropThrough(&mine_, place);
  theirs_.clear();
  wrong_ = 0;
  open_.reset();
  return decision;
}

CallDecision Calls::Rank0IsLate(std::size_t place) {
  CallDecision decision{Kind::kRank0Fails,
                        "has left this call before rank 0 came: " + theirs_[place].why};
  DropThrough(&theirs_, place);
  mine_.clear();
  wrong_ = 0;
  known_to_fail_ = true;
  return decision;
}

CallDecision Calls::Rank0Missed(std::string why) {
  known_to_fail_ = true;
  Keep(&mine_, {*name_, 0, "another rank had missed it", -1});
  return {Kind::kRank0Fails, std::move(why)};
}

CallDecision Calls::OneHasMissed(std::optional<int> vote) {
  int order = OrderOfCalls(*name_, open_->name);
  if (order == 0) {
    if (wrong_ == 0 && !vote) {
      return {Kind::kUnclear};
    }
    order = wrong_ != 0 ? -wrong_ : vote.value_or(0);
    order = order == 0 ? -1 : order;
    wrong_ = order;
  }
  if (order < 0) {
    CallDecision decision = Rank0Missed(Different(open_->name, "rank 0", *name_, "it"));
    decision.other_waits = true;
    return decision;
  }
  const std::uint64_t number = open_->number;
  std::string why = Different(*name_, "this rank", open_->name, "rank 0");
  OtherLeft(why);
  CallDecision decision{Kind::kOtherRankFails, std::move(why), number};
  decision.other_waits = true;
  return decision;
}

void CallsOfRank0::Left(Calls::Made call) {
  if (!alone_) {
    Keep(&left_, std::move(call));
  }
}

void CallsOfRank0::LeftAlone() {
  if (!std::exchange(taken_, false)) {
    alone_ = true;
    left_.clear();
  }
}

void CallsOfRank0::Joined() {
  left_.clear();
  alone_ = false;
  taken_ = false;
}

std::optional<Calls::Made> CallsOfRank0::Take(const std::string& name) {
  const auto place = PlaceOf(left_, name, 0, false);
  if (!place) {
    return {};
  }
  Calls::Made taken = std::move(left_[*place]);
  DropThrough(&left_, *place);
  taken_ = true;
  return taken;
}

std::string EndedWithoutThisRank(const std::string& why) {
  return "the other ranks have ended this call without this rank" + (why.empty() ? "" : ": " + why);
}

int OrderOfCalls(std::string_view mine, std::string_view theirs) {
  int order = 0;
  while (!mine.empty() && !theirs.empty()) {
    if (IsDigit(mine.front()) && IsDigit(theirs.front())) {
      const std::string_view a = TakeDigits(&mine);
      const std::string_view b = TakeDigits(&theirs);
      if (order == 0 && a != b) {
        order = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : (a < b ? -1 : 1);
      }
    } else if (mine.front() == theirs.front()) {
      mine.remove_prefix(1);
      theirs.remove_prefix(1);
    } else {
      return 0;
    }
  }
  return mine.empty() && theirs.empty() ? order : 0;
}

}  // namespace varve
