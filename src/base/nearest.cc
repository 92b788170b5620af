#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace varve {
namespace {

/// No name is compared that is longer: the cost is the product of the lengths.
constexpr std::size_t kLongest = 128;
constexpr std::size_t kMostNames = 10'000;

/// Returns the number of letters to change, add, remove or swap with their neighbour to turn one
/// word into the other.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

/// Returns the number of the nearest name, or how many there are.
std::size_t NearestOf(std::string_view given, const std::vector<std::string_view>& names) {
  std::size_t nearest = names.size();
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (std::size_t i = 0; i < names.size() && given.size() <= kLongest; ++i) {
    const std::string_view name = names[i];
    const std::size_t longer = std::max(given.size(), name.size());
    // A third of the letters may be wrong, and one of a short word.
    const std::size_t most = std::max<std::size_t>(1, longer / 3);
    if (longer - std::min(given.size(), name.size()) > most && !name.starts_with(given)) {
      continue;
    }
    const bool begins = given.size() >= 2 && name.starts_with(given);
    const std::size_t distance = begins ? 1 : Distance(given, name);
    if (distance <= most && distance < least) {
      least = distance;
      nearest = i;
    }
  }
  return nearest;
}

/// Returns as many keys of a name as `like` has.
std::string_view FirstKeys(std::string_view name, std::string_view like) {
  std::size_t end = name.find('.');
  for (auto dots = std::count(like.begin(), like.end(), '.'); dots > 0 && end != name.npos;
       --dots) {
    end = name.find('.', end + 1);
  }
  return name.substr(0, end);
}

}  // namespace

std::string Nearest(std::string_view given, const std::vector<std::string>& names) {
  const std::size_t found = NearestOf(given, {names.begin(), names.end()});
  return found == names.size() ? "" : names[found];
}

std::string NearestToGlob(std::string_view glob, const std::vector<std::string>& names) {
  while (glob.ends_with('*') || glob.ends_with('.')) {
    glob.remove_suffix(1);
  }
  std::vector<std::string_view> first;
  for (const std::string& name : names) {
    if (first.size() == kMostNames) {
      break;
    }
    first.push_back(FirstKeys(name, glob));
  }
  const std::size_t found = NearestOf(glob, first);
  return found == first.size() ? "" : names[found];
}

}  // namespace varve
