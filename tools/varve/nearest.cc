#include "nearest.h"

#include <algorithm>
#include <limits>

namespace varve::cli {
namespace {

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

}  // namespace

std::string Nearest(std::string_view given, const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 64;  // No name is as long; the cost is the product of lengths.
  std::string nearest;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string& name : names) {
    if (given.size() > kLongest) {
      break;
    }
    const bool begins = given.size() >= 2 && name.starts_with(given);
    const std::size_t distance = begins ? 1 : Distance(given, name);
    // A third of the letters may be wrong, and one of a short word.
    if (distance <= std::max<std::size_t>(1, std::max(given.size(), name.size()) / 3) &&
        distance < least) {
      least = distance;
      nearest = name;
    }
  }
  return nearest;
}

}  // namespace varve::cli
