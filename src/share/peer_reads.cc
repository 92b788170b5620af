// Ranks that need the same bytes, where no page cache serves them all: those of several nodes, and
// all whose files are on a server. Every rank of a group asks storage for its part of the bytes and
// has the rest from the others.
//  1. Each rank opens a listening socket before the exchange of the load, and its address and a
//     token go with its need. Rank 0 makes the groups (sharing.h) and sends each rank the addresses
//     that it may ask. No rank waits for another one here: an early connection waits in the
//     listener's queue.
//  2. Files are cut into cells, the units of a load. Which rank owns a cell follows from the
//     numbers of file and cell alone. The owner reads it from storage. On each other node one rank
//     has it from the owner and passes it to its node, so that it comes to a node once.
//  3. A rank that is asked reads what is wanted, if it has not yet, and keeps the cells that it
//     used last. It asks another rank only for a cell of its node, and only the owner. So the
//     chain of questions ends at storage, after two steps at most. Own cells have memory of their
//     own: a rank that waits for the owner of a cell never waits for one that waits itself.
//  4. Each rank takes its own cells some windows before the others' (Order), so that most of those
//     are there when they are asked for. A rank that is behind asks for what is no longer kept:
//     then it is read again. A page cache keeps what a disk has given.
//  5. Where a rank gives no byte in time, closes a connection or cannot be reached, it is not asked
//     for half a minute; where it cannot read, this time. The rank that asked reads from storage.
//     The limit for an owner is shorter than the one for a rank that may itself be waiting for an
//     owner. So a rank that dies, hangs or has a damaged disk costs the others time alone.
//  6. Each rank compares the checksums of all blocks, also of those that another rank sent. It
//     reads a block that differs again, from storage, before it counts as damaged. Where a file
//     has no checksums, the rank that sends bytes adds one. The receiver compares it, and reads the
//     bytes from storage where it differs.
//  7. A rank whose own reads turn out to be four times as fast as those from others reads alone
//     from then on, and goes on serving: the network may be slower than the storage. So does one
//     that reaches no other rank.
//  8. The object lives until all ranks have said how their reads ended.

#include "share/peer_reads.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/checked.h"
#include "base/fields.h"
#include "base/guarded.h"
#include "base/threads.h"
#include "pipeline/kept_tail.h"
#include "pipeline/read_units.h"

namespace varve {
namespace {

/// Cells of a rank in each window of the order, and most of those that it has from other nodes.
constexpr std::size_t kWindowCells = 6;
constexpr std::size_t kWindowCellsOfNode = 12;
/// Own cells that are kept: those of the last windows, on two nodes of four.
constexpr std::size_t kKeptCells = 24;
/// Files for each rank from which on a file has one owner: some have one file more than others.
constexpr std::size_t kManyFiles = 4;
/// Most connections that a rank serves at once, each on a thread.
constexpr std::size_t kMostServed = 256;
/// Pause after a connection that could not be accepted.
constexpr int kPauseMs = 50;
/// Longest time in which an answer does not move on: of an owner, and of any other rank.
constexpr auto kOwnerLimit = std::chrono::seconds(4);
constexpr auto kLimit = std::chrono::seconds(15);
/// Time for which a rank that did not answer is not asked.
constexpr auto kLostFor = std::chrono::seconds(30);
/// Ranks that cannot be reached, where none was, until a rank reads alone.
constexpr int kRefusals = 3;
/// Reads of either kind after which their speeds are compared, and how many times slower those from
/// other ranks are where they are given up. Storage that all ranks read at once gets slower.
constexpr std::uint64_t kReadsToCompare = 24;
constexpr double kTooSlow = 4;

Socket MakeEvent() { return Socket(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

/// Returns the first `bytes` of `parts`.
std::vector<std::span<std::byte>> First(std::span<const std::span<std::byte>> parts,
                                        std::uint64_t bytes) {
  std::vector<std::span<std::byte>> first;
  for (std::size_t i = 0; i < parts.size() && bytes > 0; ++i) {
    first.push_back(parts[i].first(std::min<std::uint64_t>(bytes, parts[i].size())));
    bytes -= first.back().size();
  }
  return first;
}

void CopyTo(std::span<const std::span<std::byte>> parts, std::span<const std::byte> bytes) {
  for (const std::span<std::byte> part : parts) {
    std::memcpy(part.data(), bytes.data(), part.size());
    bytes = bytes.subspan(part.size());
  }
}

}  // namespace

/// A file whose reads go by way of the group.
class PeerReads::SharedFile final : public ReadableFile {
 public:
  SharedFile(PeerReads& peers, std::uint32_t number, ReadableFile& file)
      : peers_(peers), number_(number), file_(file) {}

  [[nodiscard]] std::uint64_t size() const override { return file_.size(); }
  Status ReadAt(std::uint64_t offset, std::span<const std::span<std::byte>> parts) override {
    const std::uint64_t size = BytesOf(parts);
    if (IsMistrusted({offset, offset + size})) {
      peers_.storage_bytes_ += size;
      return file_.ReadAt(offset, parts);
    }
    return IsCached(offset, size) ? file_.ReadAt(offset, parts)
                                  : peers_.Read(number_, file_, offset, parts);
  }
  /// The reader asks for it where IsCached has said so.
  Status ReadAndSum(std::uint64_t offset, std::span<const std::span<std::byte>> parts,
                    std::uint32_t* crc) override {
    return file_.ReadAndSum(offset, parts, crc);
  }
  Status ReadUncached(std::uint64_t offset, std::byte* buffer, std::uint64_t size,
                      std::uint64_t capacity) override {
    const std::span<std::byte> part(buffer, size);
    if (!peers_.alone_) {
      return ReadAt(offset, std::span(&part, 1));
    }
    peers_.storage_bytes_ += size;
    return file_.ReadUncached(offset, buffer, size, capacity);
  }
  bool Forget(std::uint64_t offset, std::uint64_t size) override {
    const bool forgot = file_.Forget(offset, size);
    const std::scoped_lock lock(mutex_);
    return mistrusted_.insert(offset).second || forgot;
  }
  [[nodiscard]] bool IsCached(std::uint64_t offset, std::uint64_t size) override {
    return !peers_.remote_ && file_.IsCached(offset, size);
  }
  [[nodiscard]] bool IsRemote() const override { return peers_.remote_ || !peers_.alone_; }

 private:
  /// Returns true where bytes of the range have not agreed with their checksum.
  bool IsMistrusted(ByteRange range) {
    const std::scoped_lock lock(mutex_);
    const auto first = mistrusted_.lower_bound(range.begin);
    return first != mistrusted_.end() && *first < range.end;
  }

  PeerReads& peers_;
  const std::uint32_t number_;
  ReadableFile& file_;
  std::mutex mutex_;                    // Guards what follows.
  std::set<std::uint64_t> mistrusted_;  // The begins of blocks.
};

void PeerReads::Speed::Add(std::uint64_t size, TimePoint begin) {
  ++reads;
  bytes += size;
  nanoseconds += std::chrono::nanoseconds(Now() - begin).count();
}

PeerReads::PeerReads(Socket listener, Address address)
    : listener_(std::move(listener)),
      address_(std::move(address)),
      ends_(MakeEvent()),
      gives_up_(MakeEvent()) {}

Result<std::unique_ptr<PeerReads>> PeerReads::Listen() {
  VARVE_ASSIGN_OR_RETURN(auto made, varve::Listen());
  std::unique_ptr<PeerReads> peers(new PeerReads(std::move(made.first), std::move(made.second)));
  return peers->ends_.valid() && peers->gives_up_.valid()
             ? Result<std::unique_ptr<PeerReads>>(std::move(peers))
             : Unavailable("the process has no descriptors left").With({.system_error = EMFILE});
}

PeerReads::~PeerReads() {
  GiveUp();
  (void)::eventfd_write(ends_.get(), 1);
  if (accepts_.joinable()) {
    accepts_.join();
  }
  for (Served& served : serves_) {
    served.thread.join();
  }
}

void PeerReads::GiveUp() { (void)::eventfd_write(gives_up_.get(), 1); }

std::string PeerReads::address() const { return EncodeFields(address_); }

Status PeerReads::Join(const ReadGroup& group, const Metadata& metadata, CheckpointFiles& files) {
  metadata_ = &metadata;
  files_ = &files;
  remote_ = group.remote;
  node_ = group.node;
  for (const std::vector<std::string>& addresses : group.nodes) {
    std::vector<std::size_t>& node = nodes_.emplace_back();
    for (const std::string& address : addresses) {
      node.push_back(peers_.size());
      Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
      if (!address.empty()) {
        VARVE_ASSIGN_OR_RETURN(peer.address, DecodeFields<Address>(address));
      }
    }
  }
  if (group.node >= nodes_.size() || group.place >= nodes_[node_].size()) {
    return Internal("this rank is not one of those that read for each other");
  }
  self_ = nodes_[node_][group.place];
  own_cells_.emplace(kKeptCells);
  node_cells_.emplace(2 * (nodes_.size() - 1) * WindowCells());
  accepts_ = StartThread<std::thread>([this] { Accept(); });
  return Status::Ok();
}

/// Returns how many cells of a window a rank owns: few on many nodes, for it has those of the
/// others too, for its node.
std::size_t PeerReads::WindowCells() const {
  return std::clamp(kWindowCellsOfNode / std::max<std::size_t>(nodes_.size() - 1, 1),
                    std::size_t{1}, kWindowCells);
}

ReadableFile* PeerReads::Shared(std::uint32_t number, ReadableFile& file) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<SharedFile>& shared = shared_files_[number];
  if (shared == nullptr) {
    shared = std::make_unique<SharedFile>(*this, number, file);
  }
  return shared.get();
}

/// Returns true where each file has one owner, for there are many more files than ranks: on a
/// server opening one takes requests. Else cells go round the ranks.
bool PeerReads::ByFile() const { return metadata_->files.size() >= kManyFiles * peers_.size(); }

bool PeerReads::MayOwn(std::uint32_t number) const {
  return !remote_ || !ByFile() || number % peers_.size() == self_;
}

PeerReads::Source PeerReads::SourceOf(std::uint32_t file, std::uint64_t cell) const {
  const std::uint64_t number = file + (ByFile() ? 0 : cell * metadata_->files.size());
  const std::size_t owner = number % peers_.size();
  const std::vector<std::size_t>& ours = nodes_[node_];
  if (owner == self_) {
    return {Role::kOwner, owner};
  }
  if (owner >= ours.front() && owner <= ours.back()) {
    return {Role::kOther, owner};
  }
  if (ours.size() == 1) {
    return {Role::kOther, owner};  // There is no other rank to keep it for.
  }
  const std::size_t of_node = ours[number % ours.size()];
  return of_node == self_ ? Source{Role::kOfNode, owner} : Source{Role::kOther, of_node};
}

ReadOrder PeerReads::Order() const {
  const bool two_steps = nodes_.size() > 1 && nodes_[node_].size() > 1;
  return {.window = WindowCells() * peers_.size(),
          .first = static_cast<double>(self_) / static_cast<double>(peers_.size()),
          .delay = [this, two_steps](std::uint32_t file, std::uint64_t cell) {
            switch (SourceOf(file, cell).role) {
              case Role::kOwner: return 0U;
              case Role::kOfNode: return 1U;
              case Role::kOther: break;
            }
            return two_steps ? 2U : 1U;
          }};
}

/// Reads a range, cell by cell.
Status PeerReads::Read(std::uint32_t number, ReadableFile& file, std::uint64_t offset,
                       std::span<const std::span<std::byte>> parts) {
  const std::uint64_t end = offset + BytesOf(parts);
  for (std::uint64_t at = offset; at < end;) {
    const BlockGeometry geometry = GeometryOf(*metadata_, number);
    const std::uint64_t cell = CellOf(geometry, at);
    const ByteRange range{at, std::min(end, CellRange(geometry, cell).end)};
    const auto rest = WithoutFirst(parts, at - offset);
    const auto of_cell = First(rest, range.end - range.begin);
    at = range.end;
    const Source source = SourceOf(number, cell);
    bool shared = false;
    if (!alone_ && source.role == Role::kOther) {
      const TimePoint begin = Now();
      shared = Fetch(source.ask, number, range, kLimit, of_cell);
      if (shared) {
        others_.Add(range.end - range.begin, begin);
      }
    } else if (!alone_) {
      const auto filled = Filled(number, file, range);
      if (filled.ok()) {
        CopyTo(of_cell, (*filled)->BytesOf(range));
      } else if (filled.status().code() != StatusCode::kOutOfSpace) {
        return filled.status();
      }
      shared = filled.ok();
    }
    if (shared) {
      Compare();
    } else {
      storage_bytes_ += range.end - range.begin;
      VARVE_RETURN_IF_ERROR(file.ReadAt(range.begin, of_cell));
    }
  }
  return Status::Ok();
}

/// Returns the cell that has a range, with its bytes, for this rank and those that ask it.
Result<std::shared_ptr<Cell>> PeerReads::Filled(std::uint32_t number, ReadableFile& file,
                                                ByteRange range) {
  const BlockGeometry geometry = GeometryOf(*metadata_, number);
  const std::uint64_t index = CellOf(geometry, range.begin);
  const Source source = SourceOf(number, index);
  KeptCells& cells = source.role == Role::kOfNode ? *node_cells_ : *own_cells_;
  VARVE_ASSIGN_OR_RETURN(auto cell,
                         cells.Of(number, CellRange(geometry, index), geometry.block_bytes));
  VARVE_RETURN_IF_ERROR(cell->Fill(range, [&](ByteRange missing, std::span<std::byte> memory) {
    const TimePoint begin = Now();
    if (source.role == Role::kOfNode &&
        Fetch(source.ask, number, missing, kOwnerLimit, std::span(&memory, 1))) {
      others_.Add(memory.size(), begin);
      return Status::Ok();
    }
    const bool was_cached = !remote_ && file.IsCached(missing.begin, memory.size());
    // What goes through a page cache is still there when a rank that is behind asks for it.
    Status read = remote_ ? file.ReadUncached(missing.begin, memory.data(), memory.size(),
                                              RoundUp(memory.size(), kDirectAlignment))
                          : file.ReadAt(missing.begin, memory);
    storage_.Add(memory.size(), begin);
    storage_bytes_ += was_cached ? 0 : memory.size();
    return read;
  }));
  return cell;
}

/// Has another rank send a range. Returns false where it cannot.
bool PeerReads::Fetch(std::size_t peer, std::uint32_t number, ByteRange range,
                      std::chrono::seconds limit, std::span<const std::span<std::byte>> parts) {
  Peer& other = *peers_[peer];
  Result<PeerLink> link = LinkTo(other);
  if (!link.ok()) {
    return false;
  }
  const Result<bool> fetched = link->Fetch({number, range}, HasNoSums(number), limit, parts);
  const std::scoped_lock lock(other.mutex);
  if (fetched.ok()) {
    other.idle.push_back(*std::move(link));
  } else {
    other.lost_until = Now() + kLostFor;
    other.idle.clear();
  }
  return fetched.ok() && *fetched;
}

/// Returns a connection that no other thread uses. Errors: Unavailable.
Result<PeerLink> PeerReads::LinkTo(Peer& peer) {
  {
    const std::scoped_lock lock(peer.mutex);
    if (!peer.address || Now() < peer.lost_until) {
      return Unavailable("did not answer before");
    }
    if (!peer.idle.empty()) {
      PeerLink link = std::move(peer.idle.back());
      peer.idle.pop_back();
      return link;
    }
  }
  Result<PeerLink> made = PeerLink::To(*peer.address, gives_up_.get());
  if (made.ok()) {
    ++reached_;
    return made;
  }
  const std::scoped_lock lock(peer.mutex);
  const bool is_first = peer.lost_until == TimePoint::min();
  peer.lost_until = Now() + kLostFor;
  if (is_first && ++refused_ >= kRefusals && reached_ == 0) {
    alone_ = true;
  }
  return made;
}

/// Lets this rank read alone where that is several times as fast.
void PeerReads::Compare() {
  if (alone_ || storage_.reads < kReadsToCompare || others_.reads < kReadsToCompare) {
    return;
  }
  const auto seconds_a_byte = [](const Speed& speed) {
    return static_cast<double>(speed.nanoseconds) / static_cast<double>(speed.bytes);
  };
  if (seconds_a_byte(others_) > kTooSlow * seconds_a_byte(storage_)) {
    alone_ = true;
  }
}

void PeerReads::Accept() {
  (void)Guarded([&]() -> Status {
    while (true) {
      std::array<pollfd, 2> ready{{{listener_.get(), POLLIN, 0}, {ends_.get(), POLLIN, 0}}};
      const int count = ::poll(ready.data(), ready.size(), -1);
      if ((count < 0 && errno != EINTR) || ready[1].revents != 0) {
        return Status::Ok();
      }
      Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket.valid()) {  // No descriptor is left, as a rule, and the listener stays ready.
        (void)::poll(&ready[1], 1, kPauseMs);
        continue;
      }
      ReapServed();
      if (serves_.size() >= kMostServed) {
        continue;
      }
      Served& served = serves_.emplace_back();
      auto serve = [this, &served, held = std::move(socket)]() mutable {
        (void)Guarded([&] { return Serve(std::move(held)); });
        served.ended = true;
      };
      const Status started =
          Guarded([&] { served.thread = StartThread<std::thread>(std::move(serve)); });
      if (!started.ok()) {
        serves_.pop_back();  // And the connection is closed: who asked need not wait.
      }
    }
  });
  listener_.Close();  // So that none waits for an answer.
}

/// Joins the threads whose connections have been closed.
void PeerReads::ReapServed() {
  for (auto served = serves_.begin(); served != serves_.end();) {
    if (served->ended) {
      served->thread.join();
      served = serves_.erase(served);
    } else {
      ++served;
    }
  }
}

/// Answers the requests of one connection.
Status PeerReads::Serve(Socket socket) {
  PeerLink link(std::move(socket), ends_.get());
  VARVE_ASSIGN_OR_RETURN(const bool is_known, link.Greet(address_.token));
  while (is_known) {
    VARVE_ASSIGN_OR_RETURN(const std::optional<PeerRequest> request, link.NextRequest());
    if (!request) {
      break;
    }
    const auto cell = Guarded([&] { return ForOther(*request); });
    VARVE_RETURN_IF_ERROR(cell.ok()
                              ? link.Answer((*cell)->BytesOf(request->range),
                                            HasNoSums(static_cast<std::uint32_t>(request->file)))
                              : link.Answer(std::nullopt, false));
  }
  return Status::Ok();
}

/// Returns the cell with the bytes that another rank asks for.
Result<std::shared_ptr<Cell>> PeerReads::ForOther(const PeerRequest& request) {
  const auto number = static_cast<std::uint32_t>(request.file);
  const ByteRange range = request.range;
  if (request.file >= metadata_->files.size()) {
    return InvalidArgument("no file");
  }
  const BlockGeometry geometry = GeometryOf(*metadata_, number);
  if (range.begin >= range.end || range.begin < geometry.data_begin ||
      range.end > geometry.file_size) {
    return InvalidArgument("no range of the file's data");
  }
  if (range.end > CellRange(geometry, CellOf(geometry, range.begin)).end) {
    return InvalidArgument("more than a cell");
  }
  VARVE_ASSIGN_OR_RETURN(ReadableFile * file, files_->Open(number));
  return Filled(number, *file, range);
}

}  // namespace varve
