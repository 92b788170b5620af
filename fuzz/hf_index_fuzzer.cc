// DecodeHfIndex, DecodeHfFolder and DecodeHfChecksums. The input is an index; what follows its
// first zero byte is the safetensors header, as JSON, of every file that the index names. The whole
// input is taken for checksums too.

#include "base/bytes.h"
#include "fuzz_target.h"
#include "interop/safetensors/decode.h"
#include "interop/safetensors/hf_checksums.h"

namespace varve::hf_index_fuzzer {
namespace {

bool StaysInside(const std::string& name) {
  return !name.empty() && name.front() != '/' && name.find('\0') == std::string::npos &&
         ("/" + name + "/").find("/../") == std::string::npos;
}

}  // namespace

VARVE_FUZZ_TARGET(hf_index) {
  if (const auto sums = DecodeHfChecksums(input); sums.ok()) {
    const auto again = DecodeHfChecksums(EncodeHfChecksums(*sums));
    VARVE_FUZZ_CHECK(again.ok() && *again == *sums);
  }
  const std::size_t end = input.find('\0');
  const auto index = DecodeHfIndex(input.substr(0, end));
  if (!index.ok()) {
    return;
  }
  const auto again = DecodeHfIndex(EncodeHfIndex(*index, 1));
  VARVE_FUZZ_CHECK(again.ok() && again->weight_map == index->weight_map);

  std::string file;
  const std::string_view json = end == std::string_view::npos ? "{}" : input.substr(end + 1);
  ByteWriter(&file).U64(json.size());
  file.append(json).append(64, 'd');
  std::vector<NamedFile> files;
  for (const std::string& name : index->FileNames()) {
    VARVE_FUZZ_CHECK(StaysInside(name));
    files.push_back({name, file.size(), ReadFrom(file)});
  }
  if (const auto decoded = DecodeHfFolder(*index, files); decoded.ok()) {
    VARVE_FUZZ_CHECK(decoded->metadata.files.size() == files.size());
    VARVE_FUZZ_CHECK(decoded->metadata.tensors.size() == index->weight_map.size());
  }
}

}  // namespace varve::hf_index_fuzzer
