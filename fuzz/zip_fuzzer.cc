// ReadZipDirectory and FindRecordContent.

#include <algorithm>

#include "fuzz_target.h"
#include "interop/zip/directory.h"

namespace varve::zip_fuzzer {

VARVE_FUZZ_TARGET(zip) {
  const RangeReader read = [&](std::uint64_t begin, std::uint64_t size) {
    VARVE_FUZZ_CHECK(begin <= input.size() && size <= input.size() - begin);
    return ReadFrom(input)(begin, size);
  };
  const auto records = ReadZipDirectory(input.size(), read);
  if (!records.ok()) {
    return;
  }
  std::uint64_t content_bytes = 0;
  for (const ZipRecord& record : *records) {
    VARVE_FUZZ_CHECK(record.header_begin < record.limit && record.limit <= input.size());
    content_bytes += record.size;
    const auto same_name = [&](const ZipRecord& other) { return other.name == record.name; };
    VARVE_FUZZ_CHECK(std::count_if(records->begin(), records->end(), same_name) == 1);
    if (const auto begin = FindRecordContent(record, input.size(), read); begin.ok()) {
      VARVE_FUZZ_CHECK(*begin > record.header_begin && *begin + record.size <= record.limit);
    }
  }
  VARVE_FUZZ_CHECK(content_bytes <= input.size());
}

}  // namespace varve::zip_fuzzer
