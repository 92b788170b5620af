#include "varve/version.h"

namespace varve {

std::string_view Version() { return VARVE_VERSION_STRING; }

}  // namespace varve
