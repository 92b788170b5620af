/// The columns of the crash matrix: storages, and what goes wrong in them. A disk is a file system
/// in memory that knows what was synced (MemoryStorage); object stores are in object_places.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/matrix.h"
#include "storages/faulty.h"
#include "storages/memory.h"
#include "support/status_matchers.h"
#include "varve/catalogue.h"

namespace varve::test {

using Names = std::multiset<std::string>;

/// The state of a storage after a fault, for the judge.
struct Left {
  enum class Fate : std::uint8_t {
    kDied,    ///< The process sends nothing any more.
    kTold,    ///< An operation has failed, and the caller was told.
    kPasses,  ///< The operation succeeds when it is repeated.
  };
  Storage& storage;
  Fate fate;
  Status outcome;
  std::function<Names()> names;         ///< All that is stored, without the ids in names.
  const MemoryStorage* disk = nullptr;  ///< To be copied.
  std::optional<Fault> fault{};         ///< On a disk: the one that was told.
};
using Judge = std::function<void(Left&)>;

/// Returns true where a save to an object store says that it does not know whether readers see it.
inline bool IsOpen(const Status& outcome) {
  return outcome.message().find("may be visible") != std::string::npos;
}

/// Returns true where a save to a disk says that readers see it, but that a power cut may undo it.
inline bool IsVisible(const Status& outcome) {
  return outcome.message().find("is visible but may not survive") != std::string::npos;
}

/// Returns a name without what is random or counted in it.
inline std::string WithoutIds(const std::string& name) {
  static const std::regex id("[0-9a-f]{12,}");
  static const std::regex number("(__[0-9]+_|varve)-?[0-9]+\\.(distcp|json)$");
  return std::regex_replace(std::regex_replace(name, id, "#"), number, "$1.$2");
}

class CellPlace {
 public:
  CellPlace() = default;
  CellPlace(const CellPlace&) = delete;
  CellPlace& operator=(const CellPlace&) = delete;
  virtual ~CellPlace() = default;
  [[nodiscard]] virtual std::string run() const = 0;  ///< The directory of the checkpoints.
  [[nodiscard]] std::string path() const { return run() + "/step-1"; }
  [[nodiscard]] virtual bool is_disk() const = 0;
  [[nodiscard]] virtual bool has_locks() const { return false; }
  /// Tries fewer operations from now on: of those that it would have tried, every so-manieth.
  void Coarsen(std::uint64_t stride) { stride_ *= stride; }
  /// From now on answers of a server come with another byte, too: not those to saves, whose bytes
  /// have checksums of their own.
  virtual void CorruptAnswers() {}

  /// Sets what each run begins with: what these actions leave, in this order.
  virtual void Begin(std::vector<Action> actions, bool keeps_garbage = false) = 0;
  /// Returns what is stored after these further actions.
  virtual Names After(const std::vector<Action>& actions) = 0;
  /// Lets `act` die at each of its operations, and shows the judge each state that it may leave.
  /// Returns the number of operations; so does Fail.
  virtual std::uint64_t Kill(const Action& act, const Judge& judge) = 0;
  /// Lets each operation of `act` fail in each way.
  virtual std::uint64_t Fail(const Action& act, const Judge& judge) = 0;

 protected:
  std::uint64_t stride_ = 1;
};

class Disk final : public CellPlace {
 public:
  explicit Disk(const MemoryStorageOptions& options) : options_(options) {}
  [[nodiscard]] std::string run() const override { return "runs"; }
  [[nodiscard]] bool is_disk() const override { return true; }
  [[nodiscard]] bool has_locks() const override { return options_.locks; }
  [[nodiscard]] const MemoryStorage& base() const { return *base_; }

  /// A power cut follows each of the actions: what a save has returned is there.
  void Begin(std::vector<Action> actions, bool keeps_garbage = false) override {
    base_ = std::make_unique<MemoryStorage>(options_);
    for (const Action& action : actions) {
      EXPECT_TRUE(IsOk(action(*base_)));
      base_ = base_->AfterPowerCut(PowerCut::kKeepSynced);
    }
    if (!keeps_garbage) {  // Locks that the power cuts have brought back.
      const Status collected = CollectGarbage("runs", DryRun::kNo, *base_).status();
      EXPECT_TRUE(collected.ok() || collected.code() == StatusCode::kNotFound);
    }
    base_ = base_->AfterPowerCut(PowerCut::kKeepAll);
  }

  static Names NamesIn(Storage& storage) {
    std::vector<std::string> names;
    ListTree(storage, "runs", &names);
    Names found;
    for (const std::string& name : names) {
      found.insert(WithoutIds(name));
    }
    return found;
  }

  Names After(const std::vector<Action>& actions) override {
    const auto memory = base_->AfterKill();
    for (const Action& action : actions) {
      EXPECT_TRUE(IsOk(action(*memory)));
    }
    return NamesIn(*memory);
  }

  std::uint64_t Kill(const Action& act, const Judge& judge) override {
    std::uint64_t crashes = 0;
    const auto show = [&](MemoryStorage& left, const Status& outcome) {
      for (const Survivor& survivor : Survivors(left, kSeeds, kSeeds * crashes++)) {
        const testing::ScopedTrace trace("", 0, survivor.how);
        Show(*survivor.storage, Left::Fate::kDied, outcome, {}, judge);
        if (testing::Test::HasFailure()) {
          return;  // One report is enough; thousands hide it.
        }
      }
    };
    return ForEachCrash(*base_, act, show, kEvery * stride_);
  }

  std::uint64_t Fail(const Action& act, const Judge& judge) override {
    std::uint64_t tried = 0;
    for (int kind = 0; kind <= static_cast<int>(Operation::kList); ++kind) {
      const auto operation = static_cast<Operation>(kind);
      for (const bool forever : {false, true}) {
        for (std::uint64_t number = 0; operation != Operation::kUnlock;
             number += kEvery * stride_) {
          // Each of the two errors comes at every other operation, once and for ever.
          const Status error = (number / kEvery + (forever ? 1 : 0)) % 2 == 0
                                   ? Unavailable("injected: I/O error")
                                   : Status(StatusCode::kOutOfSpace, "injected: no space left");
          const Fault fault{operation, number, forever, error};
          const testing::ScopedTrace trace("", 0,
                                           std::string(OperationName(operation)) + " " +
                                               std::to_string(number) +
                                               (forever ? " and all later ones" : ""));
          const auto memory = base_->AfterKill();
          FaultyStorage faulty(*memory);
          faulty.FailAt(fault);
          const Status outcome = act(faulty);
          if (faulty.count(operation) <= number) {
            EXPECT_TRUE(IsOk(outcome));
            break;
          }
          ++tried;
          Show(*memory, Left::Fate::kTold, outcome, fault, judge);
          if (testing::Test::HasFailure()) {
            return tried;
          }
        }
      }
    }
    return tried;
  }

  static void Show(MemoryStorage& storage, Left::Fate fate, const Status& outcome,
                   const std::optional<Fault>& fault, const Judge& judge) {
    const testing::ScopedTrace trace("", 0, "which gave " + outcome.ToString());
    Left left{.storage = storage,
              .fate = fate,
              .outcome = outcome,
              .names = [&] { return NamesIn(storage); },
              .disk = &storage,
              .fault = fault};
    judge(left);
  }

 private:
  static constexpr std::uint64_t kSeeds = 2;
  const MemoryStorageOptions options_;
  std::unique_ptr<MemoryStorage> base_;
};

}  // namespace varve::test
