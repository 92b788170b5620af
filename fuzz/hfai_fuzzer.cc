// DecodeHfaiPart and MergeHfaiParts. The input is the pickles of the parts (archives.h).

#include "archives.h"
#include "fuzz_target.h"
#include "interop/hfai/merge.h"
#include "interop/hfai/names.h"

namespace varve::hfai_fuzzer {
namespace {

constexpr std::size_t kMaxParts = 4;

}  // namespace

VARVE_FUZZ_TARGET(hfai) {
  const std::vector<Bytes> files = fuzz::ArchivesOf(input, kMaxParts);
  std::vector<HfaiPart> parts;
  for (const Bytes& file : files) {
    const auto number = static_cast<std::uint32_t>(parts.size());
    auto part = DecodeHfaiPart(file.size(), fuzz::CheckedReader(file), number, number);
    if (!part.ok()) {
      return;
    }
    parts.push_back(*std::move(part));
  }
  if (parts.empty() || !CheckHfaiParts(parts, {}).ok()) {
    return;
  }
  const auto decoded = MergeHfaiParts(std::move(parts));
  if (!decoded.ok()) {
    return;
  }
  fuzz::CheckDecoded(*decoded, fuzz::SizesOf(files), fuzz::Holes::kNone);
  VARVE_FUZZ_CHECK(decoded->structure.has_value());
}

}  // namespace varve::hfai_fuzzer
