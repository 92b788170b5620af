/// Checksums over records of any length, of which threads read pieces in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "tensor/region.h"
#include "varve/status.h"

namespace varve {

struct FileReads;

/// Gathers the checksums of the pieces of one file's records. A unit of work runs a Piece through
/// its bytes in order and then calls Finish; Check joins the results.
class RecordSums {
 public:
  /// Sorts the records of `reads`, which must outlive this and not change.
  explicit RecordSums(FileReads* reads);

  /// The running checksum of consecutive bytes of the file.
  class Piece {
   public:
    Piece(RecordSums* sums, std::uint64_t begin);
    /// Adds the next bytes of the file.
    void Add(std::span<const std::byte> bytes);
    /// Adds the sums of this piece to the result. Threads: safe against other pieces.
    void Finish();

   private:
    void Close();
    RecordSums& sums_;
    std::uint64_t at_;
    std::size_t record_;
    std::uint64_t piece_begin_ = 0;
    std::uint32_t crc_ = 0;
    bool open_ = false;
    struct Sum {
      std::size_t record = 0;
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
      std::uint32_t crc = 0;
    };
    std::vector<Sum> done_;
    friend class RecordSums;
  };

  [[nodiscard]] bool empty() const;

  /// Compares the records of which all bytes have been summed. Errors: DataLoss for the first that
  /// differs, naming its owner.
  [[nodiscard]] Status Check(const std::function<std::string(std::uint32_t)>& owner_name);

 private:
  const FileReads& reads_;
  std::mutex mutex_;
  std::vector<Piece::Sum> sums_;  // Guarded by mutex_.
};

}  // namespace varve
