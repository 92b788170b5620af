// Messages over MPI, with deadlines that MPI itself does not have.
//
// 1. A message is cut into parts of at most `part_bytes`, because MPI counts in int. The tag of a
//    part says whether more follow. Parts of one sender are matched in the order they were sent
//    (MPI 4.0, 3.5, "non-overtaking"), so no number is needed.
// 2. Send posts all parts with Isend, then waits until MPI has taken them. It must wait: MPI moves
//    large messages only during calls, and after the last message of a save this rank may not call
//    it again for minutes.
// 3. Two ranks that send to each other at once would then wait for each other. Therefore every
//    wait, also that of Send, takes in all messages that arrive and keeps them until Receive asks.
// 4. A wait polls; a blocking MPI call could not be left at the deadline. It yields the core at
//    first, then sleeps up to 1 ms, which is little against the files that are written meanwhile.
// 5. Requests that a deadline has left behind still point at their buffers. Both are given up
//    together: leaked, never freed under MPI's feet.

#include "varve/mpi.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <mpi.h>

namespace varve {
namespace {

constexpr int kTagLastPart = 0;
constexpr int kTagMoreFollows = 1;

using Clock = std::chrono::steady_clock;

Status Check(int code, std::string_view call) {
  if (code == MPI_SUCCESS) {
    return Status::Ok();
  }
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    length = 0;
  }
  text.resize(static_cast<std::size_t>(length));
  return Unavailable(std::string(call) + ": " + text);
}

/// One part under way. The request points at the buffer, so neither may move.
struct Part {
  int peer = 0;
  std::string bytes;
  MPI_Request request = MPI_REQUEST_NULL;
  bool last = true;
  bool done = false;
};

struct Parts {
  std::list<Part> sending;
  std::vector<std::list<Part>> arrived;  // By sender, in the order sent.
};

Status Test(Part& part) {
  int done = 0;
  VARVE_RETURN_IF_ERROR(Check(MPI_Test(&part.request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
  part.done = done != 0;
  return Status::Ok();
}

class Mpi final : public Coordinator {
 public:
  /// Takes over `communicator`.
  Mpi(MPI_Comm communicator, int rank, int size, std::uint64_t part_bytes)
      : communicator_(communicator),
        rank_(rank),
        part_bytes_(part_bytes),
        parts_(std::make_unique<Parts>()),
        sending_(parts_->sending),
        arrived_(parts_->arrived) {
    arrived_.resize(static_cast<std::size_t>(size));
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  ~Mpi() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    const bool idle = sending_.empty() && std::all_of(arrived_.begin(), arrived_.end(), AllDone);
    if (finalized == 0 && idle && !broken_) {
      MPI_Comm_free(&communicator_);
      return;
    }
    (void)parts_.release();  // Step 5: MPI may still write to or read from them.
  }

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(arrived_.size()); }

  Status Send(int to, std::string_view message, Deadline deadline) override {
    VARVE_RETURN_IF_ERROR(CheckPeer(to));
    do {
      const std::string_view bytes = message.substr(0, part_bytes_);
      message.remove_prefix(bytes.size());
      Part& part = sending_.emplace_back();
      part.peer = to;
      part.bytes = bytes;
      part.last = message.empty();
      const int code =
          MPI_Isend(part.bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to,
                    part.last ? kTagLastPart : kTagMoreFollows, communicator_, &part.request);
      VARVE_RETURN_IF_ERROR(Broken(Check(code, "MPI_Isend")));
    } while (!message.empty());
    // Waits only for messages to this rank: one that hangs must not delay messages to the others.
    const auto taken = [&] {
      return std::none_of(sending_.begin(), sending_.end(),
                          [&](const Part& part) { return part.peer == to; });
    };
    return Wait(deadline, taken, "did not take a message before the deadline");
  }

  Result<std::string> Receive(int from, Deadline deadline) override {
    VARVE_RETURN_IF_ERROR(CheckPeer(from));
    std::list<Part>& parts = arrived_[static_cast<std::size_t>(from)];
    std::string message;
    for (bool last = false; !last;) {
      VARVE_RETURN_IF_ERROR(Wait(
          deadline, [&] { return !parts.empty() && parts.front().done; },
          "no answer before the deadline"));
      last = parts.front().last;
      // Most messages are one part, which need not be copied.
      message = message.empty() ? std::move(parts.front().bytes)
                                : std::move(message) + parts.front().bytes;
      parts.pop_front();
    }
    return message;
  }

 private:
  static bool AllDone(const std::list<Part>& parts) {
    return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.done; });
  }

  [[nodiscard]] Status CheckPeer(int peer) const {
    if (broken_) {
      return Unavailable("MPI has failed before");
    }
    if (peer < 0 || peer >= size() || peer == rank_) {
      return Internal("rank " + std::to_string(rank_) + " of " + std::to_string(size()) +
                      " cannot exchange messages with rank " + std::to_string(peer));
    }
    return Status::Ok();
  }

  /// Records that MPI's state is no longer known, for the destructor.
  Status Broken(Status status) {
    broken_ = broken_ || !status.ok();
    return status;
  }

  template <class Condition>
  Status Wait(Deadline deadline, Condition condition, const char* late) {
    constexpr int kYields = 100;
    constexpr auto kLongestSleep = std::chrono::microseconds(1000);
    auto sleep = std::chrono::microseconds(10);
    for (int round = 0;; ++round) {
      VARVE_RETURN_IF_ERROR(Broken(Progress()));
      if (condition()) {
        return Status::Ok();
      }
      if (Clock::now() >= deadline) {
        return Unavailable(late).With({.system_error = ETIMEDOUT});
      }
      if (round < kYields) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(sleep);
        sleep = std::min(sleep * 2, kLongestSleep);
      }
    }
  }

  /// Lets MPI make progress, releases sent parts and takes in arrived ones.
  Status Progress() {
    for (auto part = sending_.begin(); part != sending_.end();) {
      VARVE_RETURN_IF_ERROR(Test(*part));
      part = part->done ? sending_.erase(part) : std::next(part);
    }
    for (bool found = true; found;) {
      VARVE_RETURN_IF_ERROR(TakeIn(&found));
    }
    for (std::list<Part>& parts : arrived_) {
      for (Part& part : parts) {
        if (!part.done) {
          VARVE_RETURN_IF_ERROR(Test(part));
        }
      }
    }
    return Status::Ok();
  }

  /// Starts to receive the next part from any rank, if there is one.
  Status TakeIn(bool* found) {
    int flag = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status envelope{};
    VARVE_RETURN_IF_ERROR(
        Check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &flag, &message, &envelope),
              "MPI_Improbe"));
    *found = flag != 0;
    if (!*found) {
      return Status::Ok();
    }
    int count = 0;
    VARVE_RETURN_IF_ERROR(Check(MPI_Get_count(&envelope, MPI_BYTE, &count), "MPI_Get_count"));
    Part& part = arrived_[static_cast<std::size_t>(envelope.MPI_SOURCE)].emplace_back();
    part.peer = envelope.MPI_SOURCE;
    part.bytes.resize(static_cast<std::size_t>(count));
    part.last = envelope.MPI_TAG == kTagLastPart;
    return Check(MPI_Imrecv(part.bytes.data(), count, MPI_BYTE, &message, &part.request),
                 "MPI_Imrecv");
  }

  MPI_Comm communicator_;
  const int rank_;
  const std::uint64_t part_bytes_;
  std::unique_ptr<Parts> parts_;  // Allocated on its own, so that it can be leaked as a whole.
  std::list<Part>& sending_;
  std::vector<std::list<Part>>& arrived_;
  bool broken_ = false;
};

Status CheckEnvironment() {
  int initialized = 0;
  int finalized = 0;
  VARVE_RETURN_IF_ERROR(Check(MPI_Initialized(&initialized), "MPI_Initialized"));
  VARVE_RETURN_IF_ERROR(Check(MPI_Finalized(&finalized), "MPI_Finalized"));
  if (initialized == 0 || finalized != 0) {
    return FailedPrecondition(initialized == 0 ? "call MPI_Init before making an MPI coordinator"
                                               : "MPI is already finalised");
  }
  int level = 0;
  int is_main = 0;
  VARVE_RETURN_IF_ERROR(Check(MPI_Query_thread(&level), "MPI_Query_thread"));
  VARVE_RETURN_IF_ERROR(Check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main"));
  if (level < MPI_THREAD_SERIALIZED && is_main == 0) {
    return FailedPrecondition(
        "MPI was initialised for calls from its main thread only; use that thread, or call "
        "MPI_Init_thread with MPI_THREAD_SERIALIZED");
  }
  return Status::Ok();
}

}  // namespace

namespace internal {

Result<std::unique_ptr<Coordinator>> MakeMpiCoordinator(const void* communicator, std::size_t size,
                                                        const MpiOptions& options) {
  if (communicator != nullptr && size != sizeof(MPI_Comm)) {
    return InvalidArgument("MakeMpiCoordinator takes an MPI_Comm");
  }
  if (options.part_bytes == 0 || options.part_bytes > INT_MAX) {
    return InvalidArgument("part_bytes must be between 1 and INT_MAX");
  }
  VARVE_RETURN_IF_ERROR(CheckEnvironment());
  const MPI_Comm theirs = communicator != nullptr ? *static_cast<const MPI_Comm*>(communicator)
                                                  : static_cast<MPI_Comm>(MPI_COMM_WORLD);
  if (theirs == MPI_COMM_NULL) {
    return InvalidArgument("the communicator is MPI_COMM_NULL");
  }
  int between_groups = 0;
  VARVE_RETURN_IF_ERROR(Check(MPI_Comm_test_inter(theirs, &between_groups), "MPI_Comm_test_inter"));
  if (between_groups != 0) {
    return InvalidArgument("an inter-communicator joins two groups; pass one group's communicator");
  }
  MPI_Comm ours = MPI_COMM_NULL;
  VARVE_RETURN_IF_ERROR(Check(MPI_Comm_dup(theirs, &ours), "MPI_Comm_dup"));
  int rank = 0;
  int world = 0;
  VARVE_RETURN_IF_ERROR(
      Check(MPI_Comm_set_errhandler(ours, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  VARVE_RETURN_IF_ERROR(Check(MPI_Comm_rank(ours, &rank), "MPI_Comm_rank"));
  VARVE_RETURN_IF_ERROR(Check(MPI_Comm_size(ours, &world), "MPI_Comm_size"));
  return std::unique_ptr<Coordinator>(std::make_unique<Mpi>(ours, rank, world, options.part_bytes));
}

}  // namespace internal
}  // namespace varve
