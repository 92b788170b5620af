#include "colour.h"

#include <cstdlib>

#include <unistd.h>

namespace varve::cli {
namespace {

const char* CodeOf(Colour colour) {
  switch (colour) {
    case Colour::kGood: return "\x1b[32m";
    case Colour::kBad: return "\x1b[31m";
    case Colour::kOdd: return "\x1b[33m";
    case Colour::kNone: break;
  }
  return nullptr;
}

}  // namespace

bool MayColour(int fd) {
  const char* const refused = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || *terminal == 0 || std::string_view(terminal) == "dumb";
  return (refused == nullptr || *refused == 0) && !dumb && ::isatty(fd) == 1;
}

std::string Painted(std::string_view text, Colour colour, int fd) {
  const char* const code = CodeOf(colour);
  if (code == nullptr || text.empty() || !MayColour(fd)) {
    return std::string(text);
  }
  return code + std::string(text) + "\x1b[0m";
}

}  // namespace varve::cli
