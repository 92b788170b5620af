#include "storage/objects/object_storage.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "storage/objects/registry.h"
#include "support/object_store.h"
#include "support/status_matchers.h"
#include "varve/stop.h"

namespace varve::object_storage_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::StoreInMemory;

/// A store that does not do what it is asked to.
class UnwillingStore final : public ObjectStore {
 public:
  explicit UnwillingStore(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  Status refuses_put;
  bool is_final = false;
  bool removes = true;

  Result<StoreEntry> Head(const std::string& name) override { return store_->Head(name); }
  Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
              const std::string& version) override {
    return store_->Read(name, offset, into, version);
  }
  Result<std::vector<StoreEntry>> List(const std::string& prefix, bool unfinished) override {
    return store_->List(prefix, unfinished);
  }
  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) override {
    return refuses_put.ok() ? store_->Put(name, data, if_absent) : refuses_put;
  }
  Status Remove(const std::vector<std::string>& names) override {
    return removes ? store_->Remove(names) : Status::Ok();
  }
  Result<std::string> StartUpload(const std::string& /*name*/, std::uint64_t /*bytes*/) override {
    throw std::runtime_error("thrown by a store");
  }
  Result<std::string> UploadPart(const std::string& /*name*/, const std::string& /*upload*/,
                                 int /*number*/, std::span<const std::byte> /*data*/) override {
    return Unimplemented("no uploads");
  }
  Status EndUpload(const std::string& /*name*/, const std::string& /*upload*/,
                   const std::vector<std::string>* /*parts*/) override {
    return Status::Ok();
  }
  [[nodiscard]] bool RefusalsAreFinal() const override { return is_final; }

 private:
  const std::shared_ptr<ObjectStore> store_;
};

class RegisteredStores : public testing::Test {
 protected:
  std::unique_ptr<ObjectStorage> Make(const ObjectStoreOptions& options = {}) {
    return std::make_unique<ObjectStorage>("mem", store_, options);
  }
  static ConditionalWrites& Writes(Storage& storage) {
    return *storage.extras().conditional_writes;
  }
  static std::string Read(Storage& storage, const std::string& name) {
    auto content = ReadWholeFile(storage, name, std::uint64_t{1} << 30);
    return content.ok() ? *content : content.status().ToString();
  }
  std::shared_ptr<StoreInMemory> store_ = std::make_shared<StoreInMemory>();
};

TEST_F(RegisteredStores, TakeSchemesThatNobodyElseServes) {
  for (const char* const scheme : {"", "x", "Mem", "m em", "1mem", "mem:", "file", "s3", "https"}) {
    EXPECT_TRUE(FailsWith(RegisterObjectStore(scheme, store_), StatusCode::kInvalidArgument))
        << scheme;
  }
  EXPECT_TRUE(FailsWith(RegisterObjectStore("mem", nullptr), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(RegisterObjectStore("mem", store_, {.part_bytes = 1000}),
                        StatusCode::kInvalidArgument));
  EXPECT_TRUE(
      FailsWith(ResolvePath("mem://a/b"), StatusCode::kInvalidArgument, {"mem://", "s3://"}));
  ASSERT_TRUE(IsOk(RegisterObjectStore("mem", store_)));
  EXPECT_EQ(RegisteredSchemes(), std::vector<std::string>{"mem"});
  EXPECT_EQ(*ResolvePath("mem://a//b//"), "mem://a/b");
  EXPECT_TRUE(FailsWith(ResolvePath("mem://a/b", PosixStorage()), StatusCode::kInvalidArgument));
  EXPECT_TRUE(FailsWith(ResolvePath("mem:/a/b"), StatusCode::kInvalidArgument, {"one slash"}));
  EXPECT_TRUE(FailsWith(ResolvePath("other://a/b"), StatusCode::kInvalidArgument, {"mem://"}));
  for (const char* const name : {"mem://", "mem://a/../b", "mem://./b"}) {
    EXPECT_TRUE(FailsWith(ResolvePath(name), StatusCode::kInvalidArgument)) << name;
  }
  EXPECT_TRUE(
      FailsWith(RegisterObjectStore("mem", store_), StatusCode::kAlreadyExists, {"replace"}));
  ASSERT_TRUE(IsOk(WriteWholeFile(AnyStorage(), "mem://a/b", "text")));
  const auto open = AnyStorage().OpenForRead("mem://a/b");
  ASSERT_TRUE(
      IsOk(RegisterObjectStore("mem", std::make_shared<StoreInMemory>(), {.replace = true})));
  EXPECT_TRUE(FailsWith(AnyStorage().OpenForRead("mem://a/b"), StatusCode::kNotFound));
  EXPECT_TRUE(IsOk(UnregisterObjectStore("mem")));
  EXPECT_TRUE(FailsWith(UnregisterObjectStore("mem"), StatusCode::kNotFound));
  EXPECT_TRUE(FailsWith(ResolvePath("mem://a/b"), StatusCode::kInvalidArgument));
  std::string content(4, ' ');
  EXPECT_TRUE(IsOk((*open)->ReadAt(0, std::as_writable_bytes(std::span(content)))));
  EXPECT_EQ(content, "text");
}

TEST_F(RegisteredStores, FindNoAbsenceInAWrite) {
  const auto store = std::make_shared<UnwillingStore>(store_);
  ObjectStorage storage("mem", store, {});
  ASSERT_TRUE(Writes(storage).Prepare("mem://b").ok());
  store->refuses_put = NotFound("no such bucket");
  for (const Status& status : {Writes(storage).WriteIfAbsent("mem://b/x", "text"),
                               Writes(storage).Replace("mem://b/x", "text"),
                               WriteWholeFile(storage, "mem://b/x", "text")}) {
    EXPECT_TRUE(FailsWith(status, StatusCode::kUnavailable, {"mem://b/x", "no such bucket"}));
  }
}

TEST_F(RegisteredStores, AFileThatIsGivenUpLeavesNothing) {
  const auto storage = Make({.part_bytes = std::uint64_t{1} << 20});
  {
    auto file = storage->OpenForWrite("mem://b/x", {});
    ASSERT_TRUE(IsOk(file));
    const std::vector<std::byte> part(std::size_t{1} << 20);
    ASSERT_TRUE(IsOk((*file)->WriteAt(0, part)));
    EXPECT_EQ(store_->open_uploads(), 1U);
    std::stop_source stop;
    stop.request_stop();
    const ScopedStop stopped(stop.get_token());
    EXPECT_TRUE(
        FailsWith((*file)->WriteAt(part.size(), part), StatusCode::kCancelled, {"mem://b/x"}));
    file->reset();
  }
  EXPECT_EQ(store_->open_uploads(), 0U);
  EXPECT_TRUE(store_->Names().empty());
}

TEST_F(RegisteredStores, AreNotBelievedThatTheyWriteIfAbsent) {
  store_->obeys_if_absent = false;
  const auto strict = Make({.weak_publish = false});
  EXPECT_TRUE(FailsWith(Writes(*strict).Prepare("mem://b/run"), StatusCode::kUnimplemented));
  const auto weak = Make();
  const auto exclusive = Writes(*weak).Prepare("mem://b/run");
  ASSERT_TRUE(IsOk(exclusive));
  EXPECT_FALSE(*exclusive);
  EXPECT_TRUE(IsOk(Writes(*weak).WriteIfAbsent("mem://b/x", "first")));
  EXPECT_TRUE(
      FailsWith(Writes(*weak).WriteIfAbsent("mem://b/x", "second"), StatusCode::kAlreadyExists));
  EXPECT_EQ(Read(*weak, "mem://b/x"), "first");
  EXPECT_EQ(store_->Names(), std::vector<std::string>{"b/x"});  // The probes are gone.
  store_->knows_if_absent = false;
  EXPECT_TRUE(IsOk(Writes(*Make()).Prepare("mem://b/run")));
}

TEST_F(RegisteredStores, AreAskedOnceABucketWhetherTheyWriteIfAbsent) {
  const auto storage = Make();
  EXPECT_TRUE(IsOk(Writes(*storage).Prepare("mem://b/run")));
  const int calls = store_->calls;
  EXPECT_TRUE(IsOk(Writes(*storage).Prepare("mem://b/other")));
  EXPECT_EQ(store_->calls, calls);
  EXPECT_TRUE(IsOk(Writes(*storage).Prepare("mem://c/run")));
  EXPECT_GT(store_->calls, calls);
}

TEST_F(RegisteredStores, WhatBecameOfAConditionalWriteIsLookedAt) {
  const auto storage = Make();
  ASSERT_TRUE(IsOk(Writes(*storage).Prepare("mem://b/run")));
  store_->fails_after_put = AlreadyExists("a second try met the first");
  EXPECT_TRUE(IsOk(Writes(*storage).WriteIfAbsent("mem://b/x", "mine")));
  store_->fails_after_put = Unavailable("the answer was lost");
  EXPECT_TRUE(IsOk(Writes(*storage).WriteIfAbsent("mem://b/y", "mine")));
  store_->fails_after_put = Status::Ok();
  store_->conflicts = 2;  // Another's write that failed: the name is free again.
  EXPECT_TRUE(IsOk(Writes(*storage).WriteIfAbsent("mem://b/z", "mine")));
  store_->conflicts = 100;
  EXPECT_TRUE(FailsWith(Writes(*storage).WriteIfAbsent("mem://b/never", "mine"),
                        StatusCode::kUnavailable, {"not known"}));
}

TEST_F(RegisteredStores, AnObjectThatWasReplacedIsNotReadOn) {
  const auto storage = Make();
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, "mem://b/x", "text")));
  const auto file = storage->OpenForRead("mem://b/x");
  ASSERT_TRUE(IsOk(WriteWholeFile(*storage, "mem://b/x", "next", /*exclusive=*/false)));
  std::string content(4, ' ');
  EXPECT_TRUE(FailsWith((*file)->ReadAt(0, std::as_writable_bytes(std::span(content))),
                        StatusCode::kFailedPrecondition, {"mem://b/x", "read 4 bytes at 0"}));
}

TEST_F(RegisteredStores, ARefusalToReplaceMayAnswerASecondTry) {
  const auto store = std::make_shared<UnwillingStore>(store_);
  ObjectStorage storage("mem", store, {});
  ASSERT_TRUE(IsOk(Writes(storage).Replace("mem://b/x", "old")));
  store->refuses_put = Status(StatusCode::kOutOfSpace, "full");
  EXPECT_TRUE(FailsWith(Writes(storage).Replace("mem://b/x", "new"), StatusCode::kUnavailable,
                        {"full", "not known"}));
  EXPECT_TRUE(FailsWith(Writes(storage).Replace("mem://b/y", "new"), StatusCode::kOutOfSpace));
  store->is_final = true;
  EXPECT_TRUE(FailsWith(Writes(storage).Replace("mem://b/x", "new"), StatusCode::kOutOfSpace));
}

TEST_F(RegisteredStores, AreNotBelievedThatTheyRemove) {
  const auto store = std::make_shared<UnwillingStore>(store_);
  ObjectStorage storage("mem", store, {});
  ASSERT_TRUE(IsOk(WriteWholeFile(storage, "mem://b/run/x", "text")));
  store->removes = false;
  EXPECT_TRUE(FailsWith(storage.Remove("mem://b/run"), StatusCode::kUnavailable,
                        {"mem://b/run/x", "still listed"}));
  store->removes = true;
  EXPECT_TRUE(IsOk(storage.Remove("mem://b/run")));
  EXPECT_TRUE(store_->Names().empty());
}

TEST_F(RegisteredStores, AStoreThatThrowsLeavesNoWriterWaiting) {
  ObjectStorage storage("mem", std::make_shared<UnwillingStore>(store_),
                        {.part_bytes = std::uint64_t{1} << 20});
  auto file = storage.OpenForWrite("mem://b/x", {});
  ASSERT_TRUE(IsOk(file));
  const std::vector<std::byte> part(std::size_t{1} << 20);
  EXPECT_TRUE(FailsWith((*file)->WriteAt(0, part), StatusCode::kInternal, {"thrown by a store"}));
  EXPECT_TRUE(
      FailsWith((*file)->WriteAt(part.size(), part), StatusCode::kInternal, {"thrown by a store"}));
}

TEST_F(RegisteredStores, AListWithNamesFromElsewhereIsAnError) {
  store_->wrong_lists = {1};
  EXPECT_TRUE(FailsWith(Make()->List("mem://b/run"), StatusCode::kFailedPrecondition,
                        {"\"elsewhere\"", "mem://b/run/"}));
}

}  // namespace
}  // namespace varve::object_storage_test
