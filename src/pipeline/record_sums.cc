#include "pipeline/record_sums.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "base/checksum.h"
#include "pipeline/file_reader.h"

namespace varve {

RecordSums::RecordSums(FileReads* reads) : reads_(*reads) {
  std::sort(reads->records.begin(), reads->records.end(),
            [](const RecordSum& a, const RecordSum& b) { return a.begin < b.begin; });
  // Tensors that share a storage each bring its record.
  const auto same = [](const RecordSum& a, const RecordSum& b) { return a.begin == b.begin; };
  reads->records.erase(std::unique(reads->records.begin(), reads->records.end(), same),
                       reads->records.end());
}

bool RecordSums::empty() const { return reads_.records.empty(); }

RecordSums::Piece::Piece(RecordSums* sums, std::uint64_t begin) : sums_(*sums), at_(begin) {
  const auto& records = sums_.reads_.records;
  const auto first = std::partition_point(records.begin(), records.end(),
                                          [&](const RecordSum& r) { return r.end <= begin; });
  record_ = static_cast<std::size_t>(first - records.begin());
}

void RecordSums::Piece::Close() {
  if (open_) {
    done_.push_back({record_, piece_begin_, at_, crc_});
    open_ = false;
  }
}

void RecordSums::Piece::Add(std::span<const std::byte> bytes) {
  const auto& records = sums_.reads_.records;
  while (!bytes.empty() && record_ < records.size()) {
    const RecordSum& record = records[record_];
    if (at_ < record.begin) {
      const auto skip = std::min<std::uint64_t>(record.begin - at_, bytes.size());
      bytes = bytes.subspan(skip);
      at_ += skip;
      continue;
    }
    if (!open_) {
      open_ = true;
      piece_begin_ = at_;
      crc_ = 0;
    }
    const auto take = std::min<std::uint64_t>(record.end - at_, bytes.size());
    crc_ = Crc32ZipExtend(crc_, bytes.first(take));
    bytes = bytes.subspan(take);
    at_ += take;
    if (at_ == record.end) {
      Close();
      ++record_;
    }
  }
  at_ += bytes.size();
}

void RecordSums::Piece::Finish() {
  Close();
  const std::scoped_lock lock(sums_.mutex_);
  sums_.sums_.insert(sums_.sums_.end(), done_.begin(), done_.end());
  done_.clear();
}

Status RecordSums::Check(const std::function<std::string(std::uint32_t)>& owner_name) {
  const std::scoped_lock lock(mutex_);
  std::sort(sums_.begin(), sums_.end(), [](const Piece::Sum& a, const Piece::Sum& b) {
    return std::tie(a.record, a.begin) < std::tie(b.record, b.begin);
  });
  for (std::size_t i = 0; i < sums_.size();) {
    const RecordSum& record = reads_.records[sums_[i].record];
    const std::size_t first = i;
    std::uint64_t reached = record.begin;
    std::uint32_t crc = 0;
    for (; i < sums_.size() && sums_[i].record == sums_[first].record; ++i) {
      if (sums_[i].begin == reached) {
        const std::uint64_t bytes = sums_[i].end - sums_[i].begin;
        crc = i == first ? sums_[i].crc : Crc32ZipJoin(crc, sums_[i].crc, bytes);
        reached = sums_[i].end;
      }
    }
    if (reached == record.end && crc != record.crc32) {
      return DataLoss(reads_.name + " [" + std::to_string(record.begin) + ", " +
                      std::to_string(record.end) +
                      "): the record's checksum does not match (want " + HexU32(record.crc32) +
                      ", got " + HexU32(crc) + "), holds " + owner_name(record.owner));
    }
  }
  return Status::Ok();
}

}  // namespace varve
