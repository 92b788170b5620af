/// The object stores of the crash matrix: a program's own in memory, and a server that speaks S3's
/// protocol.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/time_source.h"
#include "crash/places.h"
#include "crash/s3_faults.h"
#include "storage/objects/object_storage.h"
#include "support/object_store.h"
#include "support/s3_server.h"
#include "support/sanitized.h"
#include "support/status_matchers.h"

namespace varve::test {

/// A store, and one process that uses it.
class ObjectRun {
 public:
  ObjectRun() = default;
  ObjectRun(const ObjectRun&) = delete;
  ObjectRun& operator=(const ObjectRun&) = delete;
  virtual ~ObjectRun() = default;
  virtual Storage& storage() = 0;
  /// Sets what becomes of each request from now on: a number of faults(), or -1.
  virtual void SetScript(std::function<int(int index)> script) = 0;
  [[nodiscard]] virtual int requests() const = 0;  ///< Since SetScript.
  /// From now on the `number`th write of a whole object gets no answer, and the request after it,
  /// which would look what became of it, fails. The write is carried out, or `late`: by SettleWrite.
  virtual void LoseWrite(int /*number*/, bool /*late*/) {}
  virtual void SettleWrite(bool /*carries_out*/) {}
  [[nodiscard]] virtual int writes() const { return 0; }  ///< Since LoseWrite.
  [[nodiscard]] virtual Names names() const = 0;
};

/// Faults of an object store: a retry outlasts the first `passing` of them, and not the next
/// `told`. `dead` are the faults of the request at which a process dies.
struct ObjectFaults {
  int passing;
  int told;
  std::vector<int> dead;
  int refusal;                ///< Of all that a dead process would send.
  bool loses_writes = false;  ///< It can LoseWrite.
};

class Objects : public CellPlace {
 public:
  [[nodiscard]] bool is_disk() const override { return false; }
  void Begin(std::vector<Action> actions, bool /*keeps_garbage*/ = false) override {
    actions_ = std::move(actions);
  }

  Names After(const std::vector<Action>& actions) override {
    const auto run = Started();
    for (const Action& action : actions) {
      EXPECT_TRUE(IsOk(action(run->storage())));
    }
    return run->names();
  }

  std::uint64_t Kill(const Action& act, const Judge& judge) override {
    int at = 0;
    const int step = requests_a_step() * static_cast<int>(stride_);
    for (std::size_t i = 0; i < faults().dead.size(); ++i) {
      const int last = faults().dead[i];
      at = static_cast<int>(i) % step;  // Together they meet more requests.
      const auto script = [&](int index) {
        return index < at ? -1 : index == at ? last : faults().refusal;
      };
      while (Once(act, judge, Left::Fate::kDied, "dies", at, Script(script)) > at) {
        at += step;
      }
    }
    return static_cast<std::uint64_t>(at);
  }

  std::uint64_t Fail(const Action& act, const Judge& judge) override {
    int requests =
        Once(act, judge, Left::Fate::kPasses, "no fault", -1, Script([](int) { return -1; }));
    const int step = requests_a_step() * static_cast<int>(stride_);
    for (int fault = 0; fault < faults().passing + faults().told; ++fault) {
      const auto fate = fault < faults().passing ? Left::Fate::kPasses : Left::Fate::kTold;
      for (int at = fault % step; at < requests; at += step) {
        const int made = Once(act, judge, fate, "fault " + std::to_string(fault), at,
                              Script([&](int index) { return index == at ? fault : -1; }));
        requests = std::max(requests, made);
      }
    }
    for (const bool late : faults().loses_writes ? std::vector{false, true} : std::vector<bool>()) {
      int at = 0;
      const auto lose = [&](ObjectRun& run) { run.LoseWrite(at, late); };
      while (Once(act, judge, Left::Fate::kTold, late ? "a late write" : "a lost answer", at, lose,
                  &ObjectRun::writes) > at) {
        at += static_cast<int>(stride_);
      }
    }
    return static_cast<std::uint64_t>(requests);
  }

 protected:
  [[nodiscard]] virtual std::unique_ptr<ObjectRun> MakeRun() const = 0;
  [[nodiscard]] virtual const ObjectFaults& faults() const = 0;
  [[nodiscard]] virtual int requests_a_step() const = 0;

 private:
  std::unique_ptr<ObjectRun> Started() {
    auto run = MakeRun();
    for (const Action& action : actions_) {
      EXPECT_TRUE(IsOk(action(run->storage())));
    }
    return run;
  }

  using Inject = std::function<void(ObjectRun&)>;
  using Count = int (ObjectRun::*)() const;
  static Inject Script(const std::function<int(int)>& script) {
    return [script](ObjectRun& run) { run.SetScript(script); };
  }

  /// Returns how many requests `act` has made, or what else is to be counted.
  int Once(const Action& act, const Judge& judge, Left::Fate fate, const std::string& what, int at,
           const Inject& inject, Count count = &ObjectRun::requests) {
    const auto run = Started();
    inject(*run);
    const Status outcome = act(run->storage());
    const int counted = (*run.*count)();
    run->SetScript([](int) { return -1; });
    run->SettleWrite(IsOpen(outcome));
    const testing::ScopedTrace trace(
        "", 0, what + " at request " + std::to_string(at) + ", which gave " + outcome.ToString());
    Left left{.storage = run->storage(), .fate = fate, .outcome = outcome, .names = [&] {
                return run->names();
              }};
    judge(left);
    return testing::Test::HasFailure() ? 0 : counted;
  }

  std::vector<Action> actions_;
};

/// A program's own store, whose calls fail before or after they are carried out. All in it is two
/// days old.
class FaultyStore final : public ObjectStore {
 public:
  Result<StoreEntry> Head(const std::string& name) override {
    return Call<Result<StoreEntry>>([&] { return inner_.Head(name); });
  }
  Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
              const std::string& version) override {
    return Call<Status>([&] { return inner_.Read(name, offset, into, version); });
  }
  Result<std::vector<StoreEntry>> List(const std::string& prefix, bool unfinished) override {
    return Call<Result<std::vector<StoreEntry>>>([&] { return inner_.List(prefix, unfinished); });
  }
  Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) override {
    const auto put = [&] { return inner_.Put(name, data, if_absent); };
    if (puts++ != lost) {
      return Call<Status>(put);
    }
    is_lost_ = true;
    if (late) {
      late_ = [this, name, bytes = std::vector(data.begin(), data.end()), if_absent] {
        (void)inner_.Put(name, bytes, if_absent);
      };
    } else {
      (void)put();
    }
    return Unavailable("injected: the answer is lost");
  }
  Status Remove(const std::vector<std::string>& names) override {
    return Call<Status>([&] { return inner_.Remove(names); });
  }
  Result<std::string> StartUpload(const std::string& name, std::uint64_t bytes) override {
    return Call<Result<std::string>>([&] { return inner_.StartUpload(name, bytes); });
  }
  Result<std::string> UploadPart(const std::string& name, const std::string& upload, int number,
                                 std::span<const std::byte> data) override {
    return Call<Result<std::string>>([&] { return inner_.UploadPart(name, upload, number, data); });
  }
  Status EndUpload(const std::string& name, const std::string& upload,
                   const std::vector<std::string>* parts) override {
    return Call<Status>([&] { return inner_.EndUpload(name, upload, parts); });
  }
  std::int64_t NowNs() override { return (TimeOfDay() + std::chrono::hours(48)).count(); }

  void Settle(bool carries_out) {
    is_lost_ = false;
    if (const auto write = std::exchange(late_, {}); write && carries_out) {
      write();
    }
    lost = -1;
  }

  enum : int { kBefore, kAfter };
  std::function<int(int)> script = [](int) { return -1; };
  std::atomic<int> calls = 0;
  std::atomic<int> puts = 0;
  int lost = -1;      ///< The Put that gets no answer.
  bool late = false;  ///< It is carried out by Settle.
  [[nodiscard]] const StoreInMemory& inner() const { return inner_; }

 private:
  template <class Returned, class Function>
  Returned Call(const Function& function) {
    const int fault = is_lost_.exchange(false) ? static_cast<int>(kBefore) : script(calls++);
    if (fault == kBefore) {
      return Unavailable("injected: no answer");
    }
    Returned returned = function();
    return fault == kAfter ? Returned(Unavailable("injected: the answer is lost"))
                           : std::move(returned);
  }
  StoreInMemory inner_;
  std::atomic<bool> is_lost_ = false;
  std::function<void()> late_;
};

class StoreRun final : public ObjectRun {
 public:
  /// Names of a scheme are those of a store where one is registered, whichever storage is used.
  StoreRun() {
    EXPECT_TRUE(alive_++ > 0 || IsOk(RegisterObjectStore("cells", store_, {.replace = true})));
  }
  ~StoreRun() override { EXPECT_TRUE(--alive_ > 0 || IsOk(UnregisterObjectStore("cells"))); }
  Storage& storage() override { return storage_; }
  void SetScript(std::function<int(int)> script) override {
    store_->script = std::move(script);
    store_->calls = 0;
  }
  [[nodiscard]] int requests() const override { return store_->calls; }
  void LoseWrite(int number, bool late) override {
    store_->puts = 0;
    store_->lost = number;
    store_->late = late;
  }
  void SettleWrite(bool carries_out) override { store_->Settle(carries_out); }
  [[nodiscard]] int writes() const override { return store_->puts; }
  [[nodiscard]] Names names() const override {
    Names names;
    for (const std::string& name : store_->inner().Names()) {
      names.insert(WithoutIds(name));
    }
    for (std::size_t i = 0; i < store_->inner().open_uploads(); ++i) {
      names.insert("(an upload)");
    }
    return names;
  }

 private:
  static inline int alive_ = 0;  // Runs of this process; tests use one thread.
  const std::shared_ptr<FaultyStore> store_ = std::make_shared<FaultyStore>();
  ObjectStorage storage_{"cells", store_, {.part_bytes = 8192}};
};

class Store final : public Objects {
 public:
  [[nodiscard]] std::string run() const override { return "cells://bucket/run"; }

 protected:
  [[nodiscard]] std::unique_ptr<ObjectRun> MakeRun() const override {
    return std::make_unique<StoreRun>();
  }
  [[nodiscard]] const ObjectFaults& faults() const override {
    static const ObjectFaults kFaults{.passing = 0,
                                      .told = 2,
                                      .dead = {FaultyStore::kBefore, FaultyStore::kAfter},
                                      .refusal = FaultyStore::kBefore,
                                      .loses_writes = true};
    return kFaults;
  }
  [[nodiscard]] int requests_a_step() const override { return kSanitized ? 4 : 1; }
};

class S3Run final : public ObjectRun {
 public:
  S3Run()
      : storage_(QuickSettings(server_), [] { return s3::Credentials{"key", "secret", "token"}; }) {
  }
  /// Those that a retry outlasts come first.
  static constexpr std::array kFaults{
      S3Fault::kUnavailable,  S3Fault::kResetBefore, S3Fault::kResetAfter, S3Fault::kTruncated,
      S3Fault::kInternalLate, S3Fault::kRefused,     S3Fault::kCorrupted};
  static constexpr int NumberOf(S3Fault fault) {
    return static_cast<int>(std::find(kFaults.begin(), kFaults.end(), fault) - kFaults.begin());
  }
  Storage& storage() override { return storage_; }
  void SetScript(std::function<int(int)> script) override {
    server_.SetScript([script = std::move(script)](const S3Request&, int index) {
      const int fault = script(index);
      return fault < 0 ? S3Fault::kNone : kFaults.at(static_cast<std::size_t>(fault));
    });
  }
  [[nodiscard]] int requests() const override { return server_.requests(); }
  [[nodiscard]] Names names() const override {
    Names names;
    for (const auto& [name, content] : server_.objects()) {
      names.insert(WithoutIds(name));
    }
    for (std::size_t i = 0; i < server_.open_uploads(); ++i) {
      names.insert("(an upload)");
    }
    return names;
  }

 private:
  S3Server server_;
  s3::S3Storage storage_;
};

class S3 final : public Objects {
 public:
  /// Each request is tried, or every third one: each try is two saves and more.
  explicit S3(bool each_request) : each_request_(each_request) {}
  [[nodiscard]] std::string run() const override { return "s3://bucket/run"; }
  void CorruptAnswers() override { faults_.told = 2; }

 protected:
  [[nodiscard]] std::unique_ptr<ObjectRun> MakeRun() const override {
    return std::make_unique<S3Run>();
  }
  [[nodiscard]] const ObjectFaults& faults() const override { return faults_; }
  [[nodiscard]] int requests_a_step() const override {
    return kSanitized ? 12 : each_request_ ? 1 : 3;
  }

 private:
  static constexpr int kRefused = S3Run::NumberOf(S3Fault::kRefused);
  const bool each_request_;
  ObjectFaults faults_{.passing = kRefused,
                       .told = 1,
                       .dead = {kRefused, S3Run::NumberOf(S3Fault::kResetAfter)},
                       .refusal = kRefused};
};

}  // namespace varve::test
