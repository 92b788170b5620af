/// The states of an asynchronous save on one rank. It has no threads, memory or clock, and its
/// steps cannot fail: the other ranks count on this one.
///
/// The copy of the tensors:
///
/// | state      | meaning                                     | becomes
/// |------------|---------------------------------------------|--------------------
/// | kUnplanned | the ranks have not settled who writes what  | kPlanned
/// | kPlanned   | a thread copies, or will                    | kEnded
/// | kEnded     | no thread reads the tensors any more        | (the end)
///
/// The writing:
///
/// | state  | meaning                                           | becomes
/// |--------|---------------------------------------------------|------------------------------
/// | kWaits | there is no copy to write                         | kMay (in waves: before the copy
/// |        |                                                   | has ended), kEnded
/// | kMay   | it waits for its turn                             | kBegun, kEnded
/// | kBegun | other ranks may have received messages about it,  | kEnded
/// |        | so that no newer save replaces it                 |
/// | kEnded | the caller has the outcome                        | (the end)
///
/// The deadline:
///
/// | state   | meaning                                          | becomes
/// |---------|--------------------------------------------------|----------
/// | kAhead  | there is none, or it is to come                  | kPassed
/// | kPassed | the save is asked to end                         | kStuck
/// | kStuck  | a call of the storage does not return all the    | (the end)
/// |         | same; the caller has the outcome                 |
///
/// The caller is told once that the tensors may change: when the copy has ended; or with the
/// outcome where no thread copies, or ever will.
#pragma once

#include <cstdint>
#include <string_view>

namespace varve {

enum class CopyState : std::uint8_t { kUnplanned, kPlanned, kEnded };
enum class WriteState : std::uint8_t { kWaits, kMay, kBegun, kEnded };
enum class DeadlineState : std::uint8_t { kAhead, kPassed, kStuck };

struct JobState {
  CopyState copy = CopyState::kUnplanned;
  WriteState write = WriteState::kWaits;
  DeadlineState deadline = DeadlineState::kAhead;
  bool told = false;  ///< That the tensors may change.
};

enum class JobEvent : std::uint8_t {
  kPlanned,
  kMayWrite,     ///< There is something to write, or there never will be.
  kCopyEnded,    ///< Well or not; also kMayWrite.
  kWriteBegins,  ///< Its turn has come.
  kWriteEnded,   ///< Well or not; also where the save failed before.
  kDeadlinePassed,
  kGracePassed,  ///< As long after the deadline as the storage has to return.
};

/// What is to be done after a step, in this order.
struct JobActions {
  bool tell = false;     ///< Tell the caller that the tensors may change.
  bool deliver = false;  ///< Give the caller the outcome.
};

JobActions Step(JobState* state, JobEvent event);

/// Returns the state for people, such as "copying".
std::string_view Name(const JobState& state);

}  // namespace varve
