/// The connection by which one rank asks another for bytes of a file.
///
/// Messages: the rank that connects sends the token of the other's address, once. Then come
/// requests, each with its answer: a request is the number of a file and the begin and end of a
/// range; an answer is one byte, and where that is 1 the bytes of the range follow. All numbers are
/// 8 bytes, little-endian.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "coordinate/connection.h"
#include "tensor/region.h"
#include "varve/status.h"

namespace varve {

/// A range of a file of the checkpoint, by the file's number in Metadata::files.
struct PeerRequest {
  std::uint64_t file = 0;
  ByteRange range;
};

/// One connection. Each wait of the rank that asks ends after 10 s in which no byte came or went,
/// with Unavailable; every wait ends when `wake` becomes readable, with Cancelled. After an error
/// the connection is of no use. Threads: one at a time.
class PeerLink {
 public:
  PeerLink(Socket socket, int wake) : socket_(std::move(socket)), wake_(wake) {}

  /// Connects to a rank.
  static Result<PeerLink> To(const Address& address, int wake);

  /// Fills `parts` with the bytes of a range. Returns false where the other rank cannot read them;
  /// then nothing was written and the connection can be used again.
  Result<bool> Fetch(const PeerRequest& request, std::span<const std::span<std::byte>> parts);

  /// On the other side: returns true where a rank has sent this token.
  Result<bool> Greet(std::string_view token);
  /// Returns the next request, for which it waits without a limit; nothing where the rank has
  /// closed the connection.
  Result<std::optional<PeerRequest>> NextRequest();
  /// Answers with the bytes, or that there are none.
  Status Answer(std::optional<std::span<const std::byte>> bytes);

 private:
  Socket socket_;
  int wake_;
};

}  // namespace varve
