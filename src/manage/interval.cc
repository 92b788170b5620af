// The choice of the time between saves. With the cost C of a save and the mean time M between
// failures, saves at intervals of T cost C/T of the time and failures about (T/2 + restart)/M.
// Young's optimum is sqrt(2 C M); Daly's correction is for M that is not much larger than C.

#include <algorithm>
#include <cmath>

#include "varve/manage.h"

namespace varve {
namespace {

double Optimum(double cost, double mtbf) {
  if (cost >= 2 * mtbf) {
    return mtbf;
  }
  const double ratio = cost / (2 * mtbf);
  return std::sqrt(2 * cost * mtbf) * (1 + std::sqrt(ratio) / 3 + ratio / 9) - cost;
}

}  // namespace

IntervalChoice ChooseInterval(const SaveCosts& costs, std::optional<double> mtbf,
                              double max_share) {
  const double cost = std::max(0.0, costs.stall) + std::max(0.0, costs.background);
  // Saves that overlap would wait for each other.
  IntervalChoice choice{.seconds = std::max(costs.write, cost), .reason = "a save takes so long"};
  if (const double affordable = cost / max_share; affordable > choice.seconds) {
    choice.seconds = affordable;
    choice.reason = "saves may cost no more of the time";
  }
  if (mtbf && *mtbf > 0) {
    if (const double optimum = Optimum(cost, *mtbf); optimum > choice.seconds) {
      choice.seconds = optimum;
      choice.reason = "the least time is lost to saves and failures together";
    }
    choice.lost_share = std::min(1.0, (choice.seconds / 2 + std::max(0.0, costs.restart)) / *mtbf);
  }
  choice.save_share = choice.seconds > 0 ? std::min(1.0, cost / choice.seconds) : 0;
  return choice;
}

}  // namespace varve
