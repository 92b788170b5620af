#include "json.h"

#include <cmath>

namespace varve::cli {

std::string ToLine(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json Seconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace varve::cli
