#include "varve/metadata.h"

namespace varve {

std::string_view Version() { return VARVE_VERSION_STRING; }

}  // namespace varve
