/// The connection by which one rank asks another for bytes of a file.
///
/// Messages: the rank that connects sends the first half of the token of the other's address, and
/// the other answers with the second half. Then come requests, each with its answer: a request is
/// the number of a file and the begin and end of a range; an answer is one byte, and where that is
/// 1 the bytes of the range and their CRC-32C follow. The CRC is zero for a file whose blocks have
/// checksums of their own: the reader compares those. All numbers are little-endian, of 8 bytes,
/// the CRC of 4.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "coordinate/channel/connection.h"
#include "tensor/region.h"
#include "varve/status.h"

namespace varve {

/// A range of a file of the checkpoint, by the file's number in Metadata::files.
struct PeerRequest {
  std::uint64_t file = 0;
  ByteRange range;
};

/// One connection. Every wait ends when `wake` becomes readable, with Cancelled. After an error the
/// connection is of no use. Threads: one at a time.
class PeerLink {
 public:
  PeerLink(Socket socket, int wake);

  /// Connects to a rank. Errors: Unavailable after 3 s without a connection or without its
  /// greeting, or where the process has no descriptors.
  static Result<PeerLink> To(const Address& address, int wake);

  /// Fills `parts` with the bytes of a range. Returns false where the other rank cannot read them;
  /// then nothing was written and the connection can be used again. `limit` is the longest time in
  /// which no byte comes or goes. Errors: Unavailable; DataLoss where `has_sum` and the bytes are
  /// not what was sent.
  Result<bool> Fetch(const PeerRequest& request, bool has_sum, std::chrono::seconds limit,
                     std::span<const std::span<std::byte>> parts);

  /// On the other side: returns true where a rank that has this token is there, within 10 s.
  Result<bool> Greet(std::string_view token);
  /// Returns the next request, for which it waits without a limit; nothing where the rank has
  /// closed the connection.
  Result<std::optional<PeerRequest>> NextRequest();
  /// Answers with the bytes, or that there are none.
  Status Answer(std::optional<std::span<const std::byte>> bytes, bool has_sum);

 private:
  Socket socket_;
  int wake_;
};

}  // namespace varve
