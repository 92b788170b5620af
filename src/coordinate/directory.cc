// How ranks exchange messages through a directory. DIR is its path; message N (from 0, counted by
// pair) of rank F to rank T is the file DIR/N-from-F-to-T.
//
//  1. The sender writes DIR/.N-from-F-to-T.part: a frame of magic, length and CRC-32C, then the
//     message. A file of that name was left by a dead predecessor of this rank and is overwritten.
//     Nothing is synced: no message has to survive a power cut, since no process does. So an error
//     that a network file system has only when it closes the file goes unseen here; it shows at
//     step 4.
//  2. If DIR does not exist, the sender makes it and repeats step 1. Of two ranks that do so at
//     once, the second finds DIR and goes on. A rank other than 0 that has sent before does not
//     make DIR again: rank 0 has removed it at its end (step 7), and no rank would read the
//     message.
//  3. The file gets its name by a rename, so that it is seen whole or not at all, whenever the
//     sender dies. The rename replaces: a predecessor may have died just after it, and what the
//     receiver finds must be the message of the rank that now waits for the answer. A receiver that
//     has the old file open reads that one to its end, and step 5 then removes the new one: either
//     way it has got message N once.
//  4. The receiver looks for the file by its name, less and less often, and checks the frame: a
//     torn or foreign file (a lost write, two processes that both believe they are rank F) is
//     kDataLoss and never a message. Every so often it opens DIR itself. An NFS client remembers
//     for up to a minute that a name was not there; to open the directory makes it ask the server.
//     And where DIR has been removed, rank 0 has ended, and the wait ends at once.
//  5. The receiver removes the file and counts on. If it dies before that, its successor finds the
//     message again; if after, its successor waits for a message that does not come again, up to
//     its deadline. A message that a sender's successor sends again after step 5 has a number that
//     no rank asks for any more; it stays there until step 7.
//  6. Only pairs with rank 0 exchange messages. With step 7 that makes it safe to remove DIR:
//     Storage has no removal of an empty directory only, so the rank that removes DIR must know
//     that no message that a rank would read can still come into it.
//  7. Rank 0, when it ends, waits until none of its own messages is left: each peer has then had
//     its last answer, and every other file in DIR, also a later one, is addressed to rank 0, which
//     reads no more. Then it removes DIR with all it holds. A peer that does not read delays rank 0
//     by kLastReads; DIR then stays, so that a peer that is merely late still gets its answer.
//     Files that are not of this protocol are never removed: then this is not the directory it
//     should be. No other rank removes DIR: it cannot know who else has yet to read.
//
// Where a file appears whole or not at all (ConditionalWrites, an object store), steps 1 to 3 are
// one: the sender writes the file under its name, which replaces. There, a directory is there as
// long as a message is in it, so that its absence says nothing: a rank that waits for a rank 0 that
// has ended waits until its deadline. A message that comes into DIR after step 7 stays, and is
// garbage a day later. Each look is a request: the pauses between them are longer.

#include "coordinate/directory.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/time_source.h"

namespace varve {
namespace {

constexpr std::string_view kMagic = "VARVEMSG";
constexpr std::uint64_t kFrameBytes = kMagic.size() + 8 + 4;
constexpr std::string_view kFromCoordinator = "-from-0-to-";
constexpr std::string_view kPart = ".part";

/// Step 4: the pause between two looks is a small part of the wait so far.
constexpr auto kFirstPause = std::chrono::milliseconds(1);
constexpr auto kLongestPause = std::chrono::seconds(1);
constexpr int kPauseShare = 32;
constexpr auto kBetweenLooksAtDirectory = std::chrono::seconds(1);
constexpr auto kFirstPauseOfRequests = std::chrono::milliseconds(50);
constexpr auto kLongestPauseOfRequests = std::chrono::seconds(5);
/// Step 7.
constexpr auto kLastReads = std::chrono::seconds(2);

std::string MessageName(std::uint64_t number, int from, int to) {
  return std::to_string(number) + "-from-" + std::to_string(from) + "-to-" + std::to_string(to);
}

bool Take(std::string_view* text, std::string_view prefix) {
  const bool there = text->starts_with(prefix);
  text->remove_prefix(there ? prefix.size() : 0);
  return there;
}

bool TakeNumber(std::string_view* text) {
  const std::size_t digits = std::min(text->find_first_not_of("0123456789"), text->size());
  text->remove_prefix(digits);
  return digits > 0;
}

/// Returns true for names of this protocol's files: messages and parts of them.
bool IsOurs(const DirectoryEntry& entry) {
  std::string_view name = entry.name;
  if (name.starts_with('.') && name.ends_with(kPart)) {
    name.remove_prefix(1);
    name.remove_suffix(kPart.size());
  }
  return !entry.is_directory && TakeNumber(&name) && Take(&name, "-from-") && TakeNumber(&name) &&
         Take(&name, "-to-") && TakeNumber(&name) && name.empty();
}

bool IsUnreadAnswer(const DirectoryEntry& entry) {
  return entry.name.find(kFromCoordinator) != std::string::npos && !entry.name.ends_with(kPart);
}

Bytes HeaderOf(std::string_view message) {
  Bytes frame;
  ByteWriter out(&frame);
  out.Raw(kMagic);
  out.U64(message.size());
  out.U32(Crc32c(AsByteSpan(message)));
  return frame;
}

/// Returns the message in the content of `file`.
Result<std::string> Unframe(const std::string& file, std::string content) {
  ByteReader in(content);
  const std::string_view magic = in.Raw(kMagic.size());
  const std::uint64_t length = in.U64();
  const std::uint32_t stored = in.U32();
  if (in.failed() || magic != kMagic || length != in.remaining()) {
    return DataLoss(file + ": not a whole message (" + std::to_string(content.size()) + " bytes)");
  }
  const std::uint32_t computed = Crc32c(AsByteSpan(in.Raw(length)));
  if (computed != stored) {
    return DataLoss(file + ": message checksum mismatch (stored " + HexU32(stored) + ", computed " +
                    HexU32(computed) + ")");
  }
  content.erase(0, kFrameBytes);
  return content;
}

bool AppearsWhole(Storage& storage, const std::string& directory) {
  ConditionalWrites* const writes = storage.extras().conditional_writes;
  return writes != nullptr && writes->Serves(directory);
}

class InDirectory final : public Coordinator {
 public:
  InDirectory(Storage& storage, std::string directory, DirectoryCoordinatorOptions options)
      : storage_(storage),
        directory_(std::move(directory)),
        appears_whole_(AppearsWhole(storage, directory_)),
        options_(std::move(options)),
        sent_(static_cast<std::size_t>(options_.size)),
        received_(static_cast<std::size_t>(options_.size)) {}
  InDirectory(const InDirectory&) = delete;
  InDirectory& operator=(const InDirectory&) = delete;

  ~InDirectory() override {
    if (options_.rank == 0) {
      RemoveDirectoryOnceRead();
    }
  }

  [[nodiscard]] int rank() const override { return options_.rank; }
  [[nodiscard]] int size() const override { return options_.size; }

  Status Send(int to, std::string_view message, Deadline /*deadline*/) override {
    VARVE_RETURN_IF_ERROR(CheckPeer(to));
    if (message.size() > kMaxDirectoryMessageBytes) {
      return InvalidArgument("a message to rank " + std::to_string(to) + " of " +
                             std::to_string(message.size()) + " bytes, at most " +
                             std::to_string(kMaxDirectoryMessageBytes) + " are allowed");
    }
    std::uint64_t& number = sent_[static_cast<std::size_t>(to)];
    const std::string name = MessageName(number, rank(), to);
    Status status = Put(name, message);
    if (status.code() == StatusCode::kNotFound) {
      if (joined_ && rank() != 0) {
        return Unavailable("rank 0 is lost");
      }
      if (Status made = storage_.MakeDirectory(directory_);
          !made.ok() && made.code() != StatusCode::kAlreadyExists) {
        return made;
      }
      status = Put(name, message);
    }
    VARVE_RETURN_IF_ERROR(status);
    joined_ = true;
    ++number;
    return Status::Ok();
  }

  Result<std::string> Receive(int from, Deadline deadline) override {
    VARVE_RETURN_IF_ERROR(CheckPeer(from));
    std::uint64_t& number = received_[static_cast<std::size_t>(from)];
    const std::string file = JoinPath(directory_, MessageName(number, from, rank()));
    const TimePoint start = Now();
    TimePoint look_at_directory = start + kBetweenLooksAtDirectory;
    while (true) {
      auto content = ReadWholeFile(storage_, file, kFrameBytes + kMaxDirectoryMessageBytes);
      if (content.ok()) {
        VARVE_ASSIGN_OR_RETURN(std::string message, Unframe(file, std::move(content).value()));
        ++number;
        (void)storage_.Remove(file);  // If it stays, no rank asks for it again.
        return message;
      }
      if (content.status().code() != StatusCode::kNotFound) {
        return content.status();
      }
      if (Now() >= look_at_directory) {
        VARVE_RETURN_IF_ERROR(LookAtDirectory());
        look_at_directory = Now() + kBetweenLooksAtDirectory;
      }
      VARVE_RETURN_IF_ERROR(Pause(start, deadline));
    }
  }

 private:
  [[nodiscard]] Status CheckPeer(int peer) const {
    const bool known = peer >= 0 && peer < size() && peer != rank();
    if (!known || (peer != 0 && rank() != 0)) {
      return Internal("rank " + std::to_string(rank()) + " of " + std::to_string(size()) +
                      " cannot exchange messages with rank " + std::to_string(peer));
    }
    return Status::Ok();
  }

  /// Makes steps 1 and 3. Errors: kNotFound when there is no directory.
  Status Put(const std::string& name, std::string_view message) {
    if (appears_whole_) {
      Bytes content = HeaderOf(message);
      content += message;
      return WriteWholeFile(storage_, JoinPath(directory_, name), content, /*exclusive=*/false);
    }
    const std::string part = JoinPath(directory_, "." + name + std::string(kPart));
    {
      // No size is given ahead: it would be preallocated, and only Sync cuts what is too much.
      VARVE_ASSIGN_OR_RETURN(const auto file, storage_.OpenForWrite(part, {.exclusive = false}));
      VARVE_RETURN_IF_ERROR(file->WriteAt(0, AsByteSpan(HeaderOf(message))));
      VARVE_RETURN_IF_ERROR(file->WriteAt(kFrameBytes, AsByteSpan(message)));
    }  // Closed before the rename: a network file system sends it to the server then.
    return storage_.Rename(part, JoinPath(directory_, name), RenameMode::kReplace);
  }

  /// Looks at the directory (step 4). Opening it as a file fails in any case; kNotFound means that
  /// it has been removed.
  [[nodiscard]] Status LookAtDirectory() const {
    if (appears_whole_) {
      return Status::Ok();
    }
    const bool missing = storage_.OpenForRead(directory_).status().code() == StatusCode::kNotFound;
    return missing && joined_ && rank() != 0 ? Unavailable("is lost") : Status::Ok();
  }

  /// Pauses between two looks. Errors: when there shall be no other look.
  [[nodiscard]] Status Pause(TimePoint start, Deadline deadline) const {
    if (options_.check) {
      VARVE_RETURN_IF_ERROR(options_.check());
    }
    const auto now = Now();
    if (now >= deadline) {
      return Unavailable("no answer before the deadline").With({.system_error = ETIMEDOUT});
    }
    const auto pause = appears_whole_ ? std::clamp<TimePoint::duration>((now - start) / kPauseShare,
                                                                        kFirstPauseOfRequests,
                                                                        kLongestPauseOfRequests)
                                      : std::clamp<TimePoint::duration>((now - start) / kPauseShare,
                                                                        kFirstPause, kLongestPause);
    SleepFor(std::min<TimePoint::duration>(pause, deadline - now));
    return Status::Ok();
  }

  /// Makes step 7.
  void RemoveDirectoryOnceRead() {
    const TimePoint start = Now();
    do {
      const auto entries = storage_.List(directory_);
      if (!entries.ok() || !std::all_of(entries->begin(), entries->end(), IsOurs)) {
        return;
      }
      // A message to rank 0 that comes in between leaves the directory not empty: once more.
      if (std::none_of(entries->begin(), entries->end(), IsUnreadAnswer) &&
          storage_.Remove(directory_).ok()) {
        return;
      }
    } while (Pause(start, start + kLastReads).ok());
  }

  Storage& storage_;
  const std::string directory_;
  const bool appears_whole_;  // A file, when it is written.
  const DirectoryCoordinatorOptions options_;
  std::vector<std::uint64_t> sent_;      // By peer: the number of the next message.
  std::vector<std::uint64_t> received_;  // Likewise.
  bool joined_ = false;                  // Has sent a message, so the directory has been there.
};

}  // namespace

std::unique_ptr<Coordinator> MakeDirectoryCoordinator(Storage& storage, std::string directory,
                                                      DirectoryCoordinatorOptions options) {
  return std::make_unique<InDirectory>(storage, std::move(directory), std::move(options));
}

}  // namespace varve
