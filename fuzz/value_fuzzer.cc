// DecodeValue: plain values and structures, docs/format.md sections 4 and 5.

#include <algorithm>

#include "format/structure.h"
#include "fuzz_target.h"
#include "varve/value.h"

namespace varve::value_fuzzer {
namespace {

constexpr int kMaxDepth = 256;  // The format's bound, docs/format.md section 4.

bool NestsAtMost(const Value& value, int depth) {
  return depth >= 0 && std::all_of(value.items.begin(), value.items.end(),
                                   [&](const Value& item) { return NestsAtMost(item, depth - 1); });
}

}  // namespace

VARVE_FUZZ_TARGET(value) {
  const Result<Value> value = DecodeValue(input);
  if (!value.ok()) {
    return;
  }
  VARVE_FUZZ_CHECK(NestsAtMost(*value, kMaxDepth));
  const Result<Value> again = DecodeValue(EncodeValue(*value));
  VARVE_FUZZ_CHECK(again.ok() && *again == *value);
  VARVE_FUZZ_CHECK(!ToString(*value).empty());
  if (value->kind == ValueKind::kInt) {
    VARVE_FUZZ_CHECK(!IntToString(*value).empty());
  }
  (void)MergeStructures({*value, *value});
}

}  // namespace varve::value_fuzzer
