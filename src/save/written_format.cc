#include "save/written_format.h"

#include <array>

namespace varve {

const WrittenFormat* FindWrittenFormat(Format format) {
  static constexpr std::array kFormats{&kNativeFormat, &kDcpFormat, &kHfaiFormat};
  for (const WrittenFormat* const entry : kFormats) {
    if (entry->format == format) {
      return entry;
    }
  }
  return nullptr;
}

}  // namespace varve
