/// One rank's part in one save, in two stages: the plan, then writing and publishing. In between
/// the data may be copied away from the tensors (asynchronous saves).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "save/file_work.h"
#include "save/settled.h"
#include "varve/checkpoint.h"
#include "varve/coordinator.h"
#include "varve/options.h"
#include "varve/storage.h"

namespace varve {

/// Threads: one at a time; Plan and Write may be called by different ones. Another process that has
/// settled() and a copy of the data may write a planned save: ResumeSave.
class SaveSession {
 public:
  SaveSession() = default;
  SaveSession(const SaveSession&) = delete;
  SaveSession& operator=(const SaveSession&) = delete;
  virtual ~SaveSession() = default;

  /// Settles the plan. Collective where the save is; a rank that is not `ready` takes part to
  /// report why. Afterwards `work` describes this rank's file; it is empty where the file could not
  /// be laid out, which Write then reports. Errors: the same on all coordinated ranks.
  virtual Status Plan(Coordinator& coordinator, const Status& ready) = 0;
  [[nodiscard]] const FileWork& work() const { return work_; }
  [[nodiscard]] const std::string& file_name() const { return file_name_; }

  /// Writes the file, from the tensors or from `staged`, and publishes the checkpoint. Collective
  /// where the save is; a rank that is not `ready` takes part to report why. After a failure it may
  /// be called again if all ranks do. `coordinator` may be another one than Plan's.
  virtual Result<SaveReport> Write(Coordinator& coordinator, StagedFile* staged,
                                   const Status& ready) = 0;

  /// Says what the coordinator may replace when it has locked the name, which may be long after the
  /// plan: where `others_come` returns true, a checkpoint whose OccupantOf is `known`, or whose
  /// save began before this one; where that cannot be found out, it stays.
  void SetReplaces(std::function<bool()> others_come, std::vector<std::string> known) {
    others_come_ = std::move(others_come);
    known_ = std::move(known);
  }
  /// Returns the OccupantOf the checkpoint that Write has published. On the coordinator, where
  /// SetReplaces was called.
  [[nodiscard]] const std::string& published_as() const { return published_as_; }

  /// Returns the planned save without its data, for ResumeSave.
  [[nodiscard]] const SettledSave& settled() const { return settled_; }
  /// Returns the phases so far.
  [[nodiscard]] const std::vector<Phase>& phases() const { return phases_; }
  /// Adds phases that were measured elsewhere: Write's report has them, and the coordinator
  /// compares them among the ranks.
  void AddPhases(std::vector<Phase> phases) {
    for (Phase& phase : phases) {
      AddPhase(&phases_, std::move(phase));
    }
  }
  /// Returns the error if this rank's file could not be laid out, else Ok.
  [[nodiscard]] const Status& prepared() const { return prepared_; }

 protected:
  SettledSave settled_;
  Status prepared_;
  FileWork work_;
  std::string file_name_;
  std::function<bool()> others_come_;
  std::vector<std::string> known_;
  std::string published_as_;
  std::vector<Phase> phases_;
};

/// How a coordinated save begins.
enum class Claim : std::uint8_t {
  kWithPlan,  ///< The name is claimed in the exchange of plans: nothing happens in between.
  kApart,     ///< It is claimed in an exchange of its own when the writing begins.
};

/// Makes a session. All arguments must outlive it; it does not read the tensors' memory once that
/// is staged.
std::unique_ptr<SaveSession> MakeSaveSession(const State& state, const std::string& path,
                                             const SaveOptions& options, Claim claim,
                                             Storage& storage);

/// Returns a session for which Plan has been called, here or elsewhere. It has no data: Write must
/// be given a staged copy. Errors: DataLoss when `settled` contradicts itself.
Result<std::unique_ptr<SaveSession>> ResumeSave(SettledSave settled, const std::string& path,
                                                const SaveOptions& options, Storage& storage);

Status CheckSaveOptions(const SaveOptions& options, const std::string& path);

}  // namespace varve
