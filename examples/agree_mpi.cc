// Shows and checks the promises of a Coordinator over MPI: messages of any size in both directions,
// the same error on all ranks when one fails, a deadline where MPI would wait forever.
//
//   mpirun -n 3 agree_mpi FOLDER      (the folder is not used; at least two ranks)
//
// A job rarely needs this: Save and Load do it inside. It serves to settle something else between
// the ranks by the same means. Exits with 1 when a promise is broken.

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>

#include "varve/coordinator.h"
#include "varve/mpi.h"

namespace {

using varve::Coordinator;
using varve::Result;
using varve::Status;

varve::Deadline In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

constexpr auto kSoon = std::chrono::milliseconds(400);
constexpr auto kAmple = std::chrono::seconds(60);

Status Expect(bool holds, const std::string& claim) {
  return holds ? Status::Ok() : varve::Internal("broken promise: " + claim);
}

/// Returns a message in which every byte differs from its neighbours and between ranks, so that a
/// lost or swapped part shows.
std::string Letter(int from, std::size_t bytes) {
  std::string letter(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) {
    letter[i] = static_cast<char>((i * 31 + static_cast<std::size_t>(from) * 7 + i / 251) % 256);
  }
  return letter;
}

/// Neighbours send each other several parts at once, neither receiving first.
Status LargeMessagesCross(Coordinator& ranks) {
  constexpr std::size_t kBytes = (5U << 20U) + 3;
  const int peer = ranks.rank() ^ 1;
  if (peer >= ranks.size()) {
    return Status::Ok();  // The last of an odd number.
  }
  VARVE_RETURN_IF_ERROR(ranks.Send(peer, Letter(ranks.rank(), kBytes), In(kAmple)));
  VARVE_RETURN_IF_ERROR(ranks.Send(peer, "", In(kAmple)));
  VARVE_ASSIGN_OR_RETURN(const std::string large, ranks.Receive(peer, In(kAmple)));
  VARVE_ASSIGN_OR_RETURN(const std::string empty, ranks.Receive(peer, In(kAmple)));
  return Expect(large == Letter(peer, kBytes) && empty.empty(),
                "messages arrive in order and unchanged");
}

/// Each rank contributes a number; each learns the sum.
Status AllLearnTheSum(Coordinator& ranks) {
  const auto add = [](const std::vector<std::string>& numbers) -> Result<std::vector<std::string>> {
    int sum = 0;
    for (const std::string& number : numbers) {
      sum += std::stoi(number);
    }
    return std::vector<std::string>(numbers.size(), std::to_string(sum));
  };
  VARVE_ASSIGN_OR_RETURN(
      const std::string sum,
      varve::Exchange(ranks, "add", std::to_string(ranks.rank()), In(kAmple), add));
  return Expect(std::stoi(sum) == ranks.size() * (ranks.size() - 1) / 2, "all learn the sum");
}

/// One rank fails; all return the same error, which names it.
Status AllLearnWhoFailed(Coordinator& ranks) {
  const Status mine = ranks.rank() == 1 ? varve::NotFound("no such file") : Status::Ok();
  const Status agreed = varve::Agree(ranks, "open", mine, In(kAmple));
  if (ranks.is_coordinator()) {
    std::printf("one rank fails:  %s\n", agreed.ToString().c_str());
  }
  return Expect(agreed.ToString() == "NotFound: open: rank 1: no such file",
                "every rank names the one that failed, not " + agreed.ToString());
}

/// One rank does not answer; the others give up at the deadline and name it. The coordinator is out
/// of step with it afterwards, hence the last thing done with it.
Status AllLearnWhoIsMissing(Coordinator& ranks) {
  const int missing = ranks.size() - 1;
  Status agreed;
  if (ranks.rank() != missing) {
    agreed = varve::Agree(ranks, "meet", Status::Ok(), In(kSoon));
  }
  MPI_Barrier(MPI_COMM_WORLD);  // The caller's own messages go on undisturbed.
  if (ranks.rank() == missing) {
    return Status::Ok();
  }
  if (ranks.is_coordinator()) {
    std::printf("one is missing:  %s\n", agreed.ToString().c_str());
  }
  const std::string expected =
      "Unavailable: meet: rank " + std::to_string(missing) + ": no answer before the deadline";
  return Expect(agreed.ToString() == expected,
                "every rank names the one that is missing, not " + agreed.ToString());
}

Status Misuse() {
  const auto null = varve::MakeMpiCoordinator(static_cast<MPI_Comm>(MPI_COMM_NULL));
  VARVE_RETURN_IF_ERROR(Expect(null.status().code() == varve::StatusCode::kInvalidArgument,
                               "MPI_COMM_NULL is refused"));
  const auto zero = varve::MakeMpiCoordinator(MPI_COMM_WORLD, {.part_bytes = 0});
  return Expect(zero.status().code() == varve::StatusCode::kInvalidArgument,
                "parts of no bytes are refused");
}

Status Run() {
  VARVE_RETURN_IF_ERROR(Misuse());
  // Small parts, so that messages of a few megabytes travel as those of many gigabytes do.
  VARVE_ASSIGN_OR_RETURN(const auto ranks,
                         varve::MakeMpiCoordinator(MPI_COMM_WORLD, {.part_bytes = 1U << 20U}));
  // A message of the caller's own, under way all the time, must not be taken for one of Varve's.
  const int to = (ranks->rank() + 1) % ranks->size();
  const int from = (ranks->rank() + ranks->size() - 1) % ranks->size();
  const int sent = ranks->rank();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(&sent, 1, MPI_INT, to, 0, MPI_COMM_WORLD, &request);

  VARVE_RETURN_IF_ERROR(LargeMessagesCross(*ranks));
  VARVE_RETURN_IF_ERROR(AllLearnTheSum(*ranks));
  VARVE_RETURN_IF_ERROR(AllLearnWhoFailed(*ranks));
  VARVE_RETURN_IF_ERROR(AllLearnTheSum(*ranks));  // An agreed failure breaks nothing.
  VARVE_RETURN_IF_ERROR(AllLearnWhoIsMissing(*ranks));

  int received = -1;
  MPI_Recv(&received, 1, MPI_INT, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  return Expect(received == from, "the caller's own messages are left alone");
}

}  // namespace

int main(int argc, char** argv) {
  const auto early = varve::MakeMpiCoordinator();
  Status status = Expect(early.status().code() == varve::StatusCode::kFailedPrecondition,
                         "a coordinator needs MPI to be initialised");
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  if (status.ok()) {
    status = Run();
  }
  if (!status.ok()) {
    // The other ranks may be waiting for this one in calls without a deadline.
    std::fprintf(stderr, "agree_mpi: %s\n", status.ToString().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
