#include "support/test_data.h"

namespace varve::test {

std::filesystem::path TestData() { return VARVE_TEST_DATA_DIR; }

}  // namespace varve::test
