// The two tables of formats: what saves write is known to the catalogue by the same names.

#include "save/written_format.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "catalogue/formats/known_format.h"

namespace varve::written_format_test {
namespace {

TEST(WrittenFormats, AreKnownByTheirIndexOrTheirNames) {
  for (const Format format : {Format::kVarve, Format::kDcp, Format::kSafetensors, Format::kHfai}) {
    const WrittenFormat* const writes = FindWrittenFormat(format);
    ASSERT_NE(writes, nullptr) << FormatName(format);
    const auto known = KnownFormats();
    const auto found = std::find_if(known.begin(), known.end(), [&](const KnownFormat* one) {
      return one->format == format && !one->has_common_names && !one->is_plain_model;
    });
    ASSERT_NE(found, known.end()) << FormatName(format);
    EXPECT_EQ(writes->HasFixedNames(), (*found)->index.empty()) << FormatName(format);
    EXPECT_TRUE(writes->index_name.empty() || (*found)->IsIndex(writes->index_name));
  }
  EXPECT_EQ(FindWrittenFormat(Format::kOlmoLocal), nullptr);
}

}  // namespace
}  // namespace varve::written_format_test
