/// Ranks of an MPI job as a Coordinator. In the library varve::mpi, which links MPI; the other
/// libraries of Varve do not.
///
///   MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
///   {
///     auto ranks = varve::MakeMpiCoordinator(MPI_COMM_WORLD);  // All ranks.
///     if (ranks.ok()) {
///       varve::Status saved = varve::Save(state, path, {}, **ranks).status();
///     }
///   }  // Destroyed before MPI_Finalize.
///   MPI_Finalize();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "varve/coordinator.h"
#include "varve/status.h"

namespace varve {

struct MpiOptions {
  /// A longer message travels in parts of this size: MPI counts bytes in an int. At most INT_MAX,
  /// and the same on all ranks.
  std::uint64_t part_bytes = std::uint64_t{1} << 30;
};

namespace internal {
/// Does the same with `communicator`, the address of an MPI_Comm of `size` bytes; null stands for
/// MPI_COMM_WORLD.
Result<std::unique_ptr<Coordinator>> MakeMpiCoordinator(const void* communicator, std::size_t size,
                                                        const MpiOptions& options);
}  // namespace internal

/// Returns the ranks of `communicator`, an MPI_Comm (this header does without mpi.h, so that it may
/// be included where there is no MPI). Collective over it: it is duplicated, so that no message
/// here ever meets one of the caller's, and errors on the duplicate are returned rather than fatal.
///
/// A wait of this object polls with pauses of up to 1 ms and leaves MPI's state alone between
/// calls, so MPI_THREAD_SERIALIZED is enough to save from any thread and MPI_THREAD_FUNNELED to
/// save from the main one.
///
/// Destroy it on all ranks before MPI_Finalize; later it makes no more calls of MPI and leaks its
/// buffers. MPI itself usually ends the whole job when one process dies; the deadlines here serve
/// where it does not, and for ranks that hang.
///
/// Errors: FailedPrecondition when MPI is not initialised or already finalised, or its thread level
/// is too low; InvalidArgument for a null or inter-communicator or a bad option; Unavailable when
/// MPI fails.
template <class MpiComm>
Result<std::unique_ptr<Coordinator>> MakeMpiCoordinator(const MpiComm& communicator,
                                                        const MpiOptions& options = {}) {
  return internal::MakeMpiCoordinator(&communicator, sizeof(MpiComm), options);
}

/// Does the same for MPI_COMM_WORLD.
inline Result<std::unique_ptr<Coordinator>> MakeMpiCoordinator() {
  return internal::MakeMpiCoordinator(nullptr, 0, {});
}

}  // namespace varve
