/// The rows of the crash matrix that copy what another save has made: conversions and uploads.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/ways.h"
#include "storages/memory.h"
#include "support/small_state.h"
#include "support/status_matchers.h"
#include "varve/convert.h"
#include "varve/upload.h"

namespace varve::test {

/// A storage with another one, which never fails, behind the names that begin with "local"; of an
/// object store behind all that are no names of objects.
class WithSource final : public Storage {
 public:
  WithSource(Storage& source, Storage& under_test)
      : Storage(under_test.extras()), source_(source), under_test_(under_test) {}
  Result<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& name,
                                                     const WriteOptions& options) override {
    return Of(name).OpenForWrite(name, options);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& name) override {
    return Of(name).OpenForRead(name);
  }
  Result<std::vector<DirectoryEntry>> List(const std::string& name) override {
    return Of(name).List(name);
  }
  Status MakeDirectory(const std::string& name) override { return Of(name).MakeDirectory(name); }
  Status SyncDirectory(const std::string& name) override { return Of(name).SyncDirectory(name); }
  Status Rename(const std::string& from, const std::string& to, RenameMode mode) override {
    return Of(from).Rename(from, to, mode);
  }
  Status Remove(const std::string& name) override { return Of(name).Remove(name); }
  Result<std::unique_ptr<StorageLock>> Lock(const std::string& name) override {
    return Of(name).Lock(name);
  }

 private:
  Storage& Of(const std::string& name) {
    const bool objects = under_test_.extras().conditional_writes != nullptr;
    return (objects ? name.find("://") == std::string::npos : name.starts_with("local"))
               ? source_
               : under_test_;
  }
  Storage& source_;
  Storage& under_test_;
};

/// Conversions of checkpoints on a disk that does not fail, to Hugging Face folders or by Unshard.
class ConvertWay final : public NumberWay {
 public:
  ConvertWay(std::string name, bool unshards, bool objects)
      : NumberWay(std::move(name), 1), unshards_(unshards) {
    copies = true;
    has_gap = unshards && objects;
    leaves_side_files = !unshards && objects;
    takes_users = false;
    const Value leaf{.kind = ValueKind::kTensorLeaf, .text = "torch"};
    for (int number = 1; number <= 3; ++number) {
      const std::vector<float> values(2000, static_cast<float>(number));
      EXPECT_TRUE(IsOk(
          SmallState()
              .Structure(Dict({{"model", Dict({{"w", leaf}})}, {"optim", Dict({{"m", leaf}})}}))
              .Floats("model.w", values)
              .Floats("optim.m", values)
              .File("config.yaml", "run: x")
              .Save(source_, Source(number))));
    }
  }
  /// A run that goes on never takes the old checkpoint's files for its own.
  [[nodiscard]] int next() const override { return unshards_ ? 2 : 3; }
  std::vector<Status> SaveAll(const Order& order) override {
    WithSource both(source_, *order.storages[0]);
    const bool over = order.overwrite != Overwrite::kNever;
    if (unshards_) {
      UnshardOptions options;
      options.overwrite = over;
      return {Unshard(Source(order.number), order.path, options, both).status()};
    }
    ConvertOptions options;
    options.to = ConvertTarget::kHf;
    options.overwrite = over;
    options.shard_size = 8000;
    return {Convert(Source(order.number), order.path, options, both).status()};
  }

 private:
  static Value Dict(const std::vector<std::pair<std::string, Value>>& items) {
    Value dict{.kind = ValueKind::kDict};
    for (const auto& [key, value] : items) {
      dict.items.push_back(Value::Str(key));
      dict.items.push_back(value);
    }
    return dict;
  }
  static std::string Source(int number) { return "local/" + std::to_string(number); }
  const bool unshards_;
  MemoryStorage source_;
};

/// Uploads by two ranks of what another way has saved on a disk that does not fail.
class UploadWay final : public Way {
 public:
  UploadWay(std::string name, std::unique_ptr<Way> way, bool fixed_names)
      : Way(std::move(name), 2), way_(std::move(way)) {
    copies = true;
    has_gap = fixed_names;
    is_varve = way_->is_varve;
    takes_users = false;
    for (int number = 1; number <= 3; ++number) {
      const std::vector<Storage*> storages(static_cast<std::size_t>(way_->ranks()), &source_);
      EXPECT_TRUE(
          IsOk(way_->Save({.storages = storages, .path = Source(number), .number = number})));
    }
  }
  std::vector<Status> SaveAll(const Order& order) override {
    return Together(order.storages, order.mortal, [&](Coordinator& rank, Storage& storage) {
      WithSource both(source_, storage);
      UploadOptions options;
      options.overwrite = order.overwrite;
      options.in_place = has_gap && order.overwrite == Overwrite::kAlways;
      return Upload(Source(order.number), order.path, options, rank, both).status();
    });
  }
  Result<int> Seen(Storage& storage, const std::string& path) override {
    return way_->Seen(storage, path);
  }

 private:
  static std::string Source(int number) { return "local/" + std::to_string(number); }
  const std::unique_ptr<Way> way_;
  MemoryStorage source_;
};

}  // namespace varve::test
