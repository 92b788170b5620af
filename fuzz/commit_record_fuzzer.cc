// DecodeCommitRecord: varve.json, docs/format.md section 7.

#include "base/checksum.h"
#include "format/commit_record.h"
#include "fuzz_target.h"

namespace varve::commit_record_fuzzer {
namespace {

/// Returns the text with the checksum that fits it: a fuzzer does not find that by chance.
std::string WithChecksum(std::string text) {
  constexpr std::string_view kField = "\"crc32c\": \"";
  const std::size_t field = text.rfind(kField);
  if (field == std::string::npos || text.size() - field < kField.size() + 8) {
    return text;
  }
  const std::size_t digits = field + kField.size();
  text.replace(digits, 8, "00000000");
  return text.replace(digits, 8, HexU32(Crc32c(AsByteSpan(text))));
}

}  // namespace

VARVE_FUZZ_TARGET(commit_record) {
  (void)DecodeCommitRecord(input);
  if (const auto record = DecodeCommitRecord(WithChecksum(std::string(input))); record.ok()) {
    const auto again = DecodeCommitRecord(EncodeCommitRecord(*record));
    VARVE_FUZZ_CHECK(again.ok() && *again == *record);
  }
}

}  // namespace varve::commit_record_fuzzer
