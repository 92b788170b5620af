#include "varve/status.h"

#include <cerrno>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "support/status_matchers.h"

namespace varve::status_test {
namespace {

using test::FailsWith;
using test::IsOk;

Status Outer(const Status& inner) {
  VARVE_RETURN_IF_ERROR(inner);
  return Internal("reached the end");
}

Result<std::size_t> Length(Result<std::string> text) {
  VARVE_ASSIGN_OR_RETURN(const std::string value, std::move(text));
  return value.size();
}

TEST(Status, ReadsFromTheOutsideInWhenAnnotated) {
  const Status status = DataLoss("checksum mismatch").Annotate("block 3").Annotate("data.bin");
  EXPECT_EQ(status.ToString(), "DataLoss: data.bin: block 3: checksum mismatch");
}

TEST(Status, StaysOkWhenAnnotated) {
  EXPECT_TRUE(IsOk(Status::Ok().Annotate("saving")));
  EXPECT_EQ(Status::Ok().Annotate("saving").ToString(), "Ok");
}

TEST(Status, ReturnIfErrorLetsOnlySuccessPass) {
  EXPECT_TRUE(FailsWith(Outer(NotFound("gone")), StatusCode::kNotFound, {"gone"}));
  EXPECT_TRUE(FailsWith(Outer(Status::Ok()), StatusCode::kInternal, {"reached the end"}));
}

TEST(Result, HandsOnItsValueOrItsError) {
  EXPECT_EQ(*Length(std::string("four")), 4U);
  EXPECT_TRUE(FailsWith(Length(Unavailable("later")), StatusCode::kUnavailable, {"later"}));
}

TEST(Result, CarriesMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  auto annotated = std::move(result).Annotate("unused");
  ASSERT_TRUE(IsOk(annotated));
  EXPECT_EQ(**annotated, 7);
}

TEST(Result, AnnotatesItsError) {
  auto result = Result<int>(NotFound("gone")).Annotate("open");
  EXPECT_TRUE(FailsWith(result, StatusCode::kNotFound, {"open: gone"}));
}

Status FullDisk() {
  return Status(StatusCode::kOutOfSpace, "write f: no space")
      .With({.path = "/run/f", .rank = 3, .system_error = ENOSPC});
}

TEST(Status, AnnotateKeepsTheDetails) {
  const Status error = FullDisk().Annotate("save c");
  EXPECT_EQ(error.message(), "save c: write f: no space");
  EXPECT_EQ(error.details(), FullDisk().details());
}

TEST(Status, WithFillsOnlyDetailsThatAreNotKnown) {
  const Status error = FullDisk().With({.path = "/run/c", .rank = 0, .system_error = EIO});
  EXPECT_EQ(error.details(), FullDisk().details());
  EXPECT_EQ(NotFound("x").With({.path = "/run/c"}).details().path, "/run/c");
  EXPECT_TRUE(Status::Ok().With({.path = "/run/c"}).details().path.empty());
}

}  // namespace
}  // namespace varve::status_test
