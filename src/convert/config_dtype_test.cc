// The dtype in the configuration of a model whose tensors were cast.

#include <string>

#include <gtest/gtest.h>

#include "convert/writers.h"

namespace varve::test::config_dtype_test {
namespace {

TEST(WithDType, ReplacesThatOfTheModelAndOfItsParts) {
  EXPECT_EQ(WithDType(R"({
  "architectures": ["dtype", "x"],
  "dtype": "float32",
  "eps": 1e-05,
  "text_config": {"a \"dtype\": ": 1, "torch_dtype" : "float16", "rope": {"dtype": "float32"}},
  "quantization_config": {"dtype": "float32", "a_config": {"dtype": "float32"}},
  "layers": [{"dtype": "float32"}]
})",
                      DType::kBFloat16),
            R"({
  "architectures": ["dtype", "x"],
  "dtype": "bfloat16",
  "eps": 1e-05,
  "text_config": {"a \"dtype\": ": 1, "torch_dtype" : "bfloat16", "rope": {"dtype": "float32"}},
  "quantization_config": {"dtype": "float32", "a_config": {"dtype": "float32"}},
  "layers": [{"dtype": "float32"}]
})");
}

TEST(WithDType, LeavesEverythingElseAsItIs) {
  for (const std::string text :
       {R"({"dtype": null, "n": "dtype", "m": "float32"})", R"(["dtype", "float32"])", R"("dtype")",
        "{}", "", R"({"dtype": "float32")", R"({"dtype": "float32"}})", "\xff"}) {
    EXPECT_EQ(WithDType(text, DType::kFloat16), text);
  }
}

}  // namespace
}  // namespace varve::test::config_dtype_test
