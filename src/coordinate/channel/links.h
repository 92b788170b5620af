/// The connections of one end, by key, and a listening socket, in one wait.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <sys/types.h>

#include "coordinate/channel/connection.h"
#include "coordinate/channel/frames.h"

namespace varve {

/// A connection that comes to the listening socket belongs to a key once its first frame has
/// brought the token; all others are closed. Threads: one at a time, but Wake.
class Links {
 public:
  /// The one that has the connections. Functions of Links call it; it may call them meanwhile.
  class Owner {
   public:
    virtual ~Owner() = default;
    /// Returns the key, at least 0, of a connection whose first frame has brought the token;
    /// nothing where it is to be closed.
    virtual std::optional<int> KeyOf(const CallReport& hello) = 0;
    virtual void Connected(int key) = 0;
    virtual void Arrived(int key, Frame frame) = 0;
    virtual void Lost(int key, const std::string& why) = 0;
    /// A connection cannot be accepted, or sockets cannot be waited for.
    virtual void Refused(std::string why) = 0;
    /// Poll reads no further connection where this returns false.
    [[nodiscard]] virtual bool TakesMore() const { return true; }
  };

  explicit Links(Owner* owner);

  /// False where the process has no descriptors for it.
  [[nodiscard]] bool is_valid() const { return poll_.valid() && wake_.valid(); }
  /// Readable after Wake, until Sleep. A wait that it ends is over.
  [[nodiscard]] int wake_fd() const { return wake_.get(); }
  void Wake();
  void Sleep();

  /// Accepts connections that bring the token. `peers`: how many are to come, for the error.
  void Listen(Socket listener, std::string token, int peers);
  /// Accepts connections again after Owner::Refused.
  void ListenAgain();
  [[nodiscard]] bool listens() const { return listener_.valid(); }
  void StopListening() { listener_.Close(); }

  /// Adds a connection, in place of the one that the key has.
  void Add(int key, Connection connection);
  /// Sends a frame as far as the socket takes it; does nothing without a connection.
  void Put(int key, Frame frame);
  /// Waits until a socket is ready, at most until then and for ten seconds; reads, writes, accepts,
  /// and drops the connections whose machines do not answer.
  void Poll(TimePoint until);
  /// Does the same with these connections alone; returns false where none of them was ready.
  bool PollOnly(const std::vector<int>& keys, TimePoint until);
  void Drop(int key, const std::string& why);
  void CloseAll(const std::string& why);
  /// Closes all without a word to the owner, and needs no memory for it.
  void Abandon();

  [[nodiscard]] bool Has(int key) const { return links_.contains(key); }
  [[nodiscard]] bool empty() const { return links_.empty(); }
  [[nodiscard]] std::size_t size() const { return links_.size(); }
  /// Bytes that a connection's socket has not taken; of all connections.
  [[nodiscard]] std::size_t UnsentTo(int key) const;
  [[nodiscard]] bool HasUnsent() const;
  /// Connections of which a part of a frame has been read, and the memory of these frames.
  [[nodiscard]] std::vector<int> HalfRead(std::size_t* bytes) const;

 private:
  void Adopt(int key, Connection connection, int how);
  void Watch(int how, int fd, std::uint64_t tag, bool writes = false);
  void Write(int key);
  void Read(int key);
  void DropUnanswered();
  void Accept();
  void Meet(std::uint64_t arriving);

  Owner* const owner_;
  const pid_t
      process_;  // A forked child has the descriptors' numbers, and other files behind them.
  Socket wake_;
  Socket poll_;
  Socket listener_;
  std::string token_;
  int peers_ = 0;
  std::map<int, Connection> links_;
  TimePoint next_look_{};                         // For those that are unanswered.
  std::set<int> blocked_;                         // Keys whose sockets take no more at present.
  std::map<std::uint64_t, Connection> arriving_;  // Those that have not sent kHello.
  std::uint64_t newest_arriving_;
};

}  // namespace varve
