#include "coordinate/channel/links.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace varve {
namespace {

/// Tags of descriptors without a key. Keys are smaller; the tags of arriving connections are
/// greater.
constexpr std::uint64_t kWakeTag = std::uint64_t{1} << 32U;
constexpr std::uint64_t kListenerTag = kWakeTag + 1;

/// Time between two looks for connections whose machines do not answer.
constexpr auto kLookForDead = std::chrono::seconds(10);

int Milliseconds(TimePoint until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

}  // namespace

Links::Links(Owner* owner)
    : owner_(owner),
      process_(::getpid()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      poll_(::epoll_create1(EPOLL_CLOEXEC)),
      newest_arriving_(kListenerTag) {
  Watch(EPOLL_CTL_ADD, wake_.get(), kWakeTag);
}

void Links::Wake() {
  if (::getpid() == process_) {
    (void)::eventfd_write(wake_.get(), 1);
  }
}

void Links::Sleep() {
  eventfd_t count = 0;
  if (::getpid() == process_) {
    (void)::eventfd_read(wake_.get(), &count);
  }
}

void Links::Listen(Socket listener, std::string token, int peers) {
  listener_ = std::move(listener);
  token_ = std::move(token);
  peers_ = peers;
  Watch(EPOLL_CTL_ADD, listener_.get(), kListenerTag);
}

void Links::ListenAgain() {
  Watch(EPOLL_CTL_ADD, listener_.get(), kListenerTag);  // Of other ends it is none.
}

void Links::Watch(int how, int fd, std::uint64_t tag, bool writes) {
  epoll_event event{};
  event.events = EPOLLIN | (writes ? std::uint32_t{EPOLLOUT} : 0U);
  event.data.u64 = tag;
  if (::epoll_ctl(poll_.get(), how, fd, &event) != 0 && how == EPOLL_CTL_ADD && errno != EEXIST &&
      errno != EBADF) {
    owner_->Refused(std::string("this process cannot wait for its sockets: ") +
                    std::strerror(errno));
  }
}

void Links::Add(int key, Connection connection) {
  Adopt(key, std::move(connection), EPOLL_CTL_ADD);
  Write(key);
}

void Links::Adopt(int key, Connection connection, int how) {
  Drop(key, kLostReason);
  Watch(how, connection.fd(), static_cast<std::uint64_t>(key));
  links_.emplace(key, std::move(connection));
  owner_->Connected(key);
}

void Links::Put(int key, Frame frame) {
  if (const auto link = links_.find(key); link != links_.end()) {
    link->second.Put(std::move(frame));
    Write(key);
  }
}

void Links::Poll(TimePoint until) {
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()),
                                 Milliseconds(std::min(until, Now() + kLookForDead)));
  if (count < 0 && errno != EINTR) {
    CloseAll("the channel is closed");
    owner_->Refused("this process has not the channel's sockets, as a forked child");
  }
  for (int i = 0; i < count && owner_->TakesMore(); ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    const std::uint64_t tag = event.data.u64;
    if (tag == kWakeTag) {
      Sleep();
    } else if (tag == kListenerTag) {
      Accept();
    } else if (tag > kListenerTag) {
      Meet(tag);
    } else {
      const auto key = static_cast<int>(tag);
      if ((event.events & EPOLLOUT) != 0) {
        Write(key);
      }
      if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0) {
        Read(key);
      }
    }
  }
  DropUnanswered();
}

void Links::DropUnanswered() {
  if (Now() < next_look_) {
    return;
  }
  next_look_ = Now() + kLookForDead;
  std::vector<int> lost;
  for (const auto& [key, link] : links_) {
    if (link.IsUnanswered()) {
      lost.push_back(key);
    }
  }
  for (const int key : lost) {
    Drop(key, kLostReason);
  }
}

bool Links::PollOnly(const std::vector<int>& keys, TimePoint until) {
  std::vector<pollfd> ready{{wake_.get(), POLLIN, 0}};
  std::vector<int> known;
  for (const int key : keys) {
    if (const auto link = links_.find(key); link != links_.end()) {
      const int events = POLLIN | (link->second.has_unsent() ? POLLOUT : 0);
      ready.push_back({link->second.fd(), static_cast<short>(events), 0});
      known.push_back(key);
    }
  }
  const bool is_ready = ::poll(ready.data(), ready.size(), Milliseconds(until)) > 0;
  if (ready[0].revents != 0) {
    Sleep();
  }
  for (std::size_t i = 0; i < known.size(); ++i) {
    const short events = ready[i + 1].revents;
    if ((events & POLLOUT) != 0) {
      Write(known[i]);
    }
    if ((events & ~POLLOUT) != 0) {
      Read(known[i]);
    }
  }
  return is_ready;
}

void Links::Write(int key) {
  const auto link = links_.find(key);
  if (link == links_.end()) {
    return;
  }
  if (!link->second.Write().ok()) {
    Read(key);  // It may have sent why it left.
    Drop(key, kLostReason);
    return;
  }
  const bool blocked = link->second.has_unsent();
  if (blocked != blocked_.contains(key)) {
    Watch(EPOLL_CTL_MOD, link->second.fd(), static_cast<std::uint64_t>(key), blocked);
    blocked ? (void)blocked_.insert(key) : (void)blocked_.erase(key);
  }
}

void Links::Read(int key) {
  for (auto link = links_.find(key); link != links_.end(); link = links_.find(key)) {
    Result<std::optional<Frame>> frame = link->second.Read();
    if (!frame.ok()) {
      Drop(key, kLostReason);
    } else if (*frame) {
      owner_->Arrived(key, std::move(**frame));
      if (!owner_->TakesMore()) {
        return;
      }
    } else {
      return;
    }
  }
}

void Links::Accept() {
  Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.valid()) {
    const std::uint64_t tag = ++newest_arriving_;
    Watch(EPOLL_CTL_ADD, socket.get(), tag);
    arriving_.emplace(tag, Connection(std::move(socket), false));
    return;
  }
  const int error = errno;
  if (error == EAGAIN || error == EINTR || error == ECONNABORTED) {
    return;
  }
  // No descriptor is left, as a rule. The listener would stay ready.
  Watch(EPOLL_CTL_DEL, listener_.get(), kListenerTag);
  std::string why = std::string("rank 0 could not accept its connection: ") + std::strerror(error);
  if (error == ENFILE || error == EMFILE) {
    why += "; rank 0 needs a descriptor for each of " + std::to_string(peers_) +
           " ranks (raise ulimit -n)";
  }
  owner_->Refused(std::move(why));
}

/// Reads the first frame of a new connection.
void Links::Meet(std::uint64_t arriving) {
  const auto found = arriving_.find(arriving);
  if (found == arriving_.end()) {
    return;
  }
  const Result<std::optional<Frame>> frame = found->second.Read();
  if (frame.ok() && !*frame) {
    return;
  }
  Connection connection = std::move(found->second);
  arriving_.erase(found);
  if (frame.ok()) {
    const auto hello = DecodeFields<CallReport>((*frame)->payload);
    if (hello.ok() && hello->text == token_) {
      if (const std::optional<int> key = owner_->KeyOf(*hello)) {
        connection.Trust();
        Adopt(*key, std::move(connection), EPOLL_CTL_MOD);
        return;
      }
    }
  }
  // A forked child may still have the socket, which would keep it here.
  Watch(EPOLL_CTL_DEL, connection.fd(), 0);
}

void Links::Drop(int key, const std::string& why) {
  if (const auto link = links_.find(key); link != links_.end()) {
    Watch(EPOLL_CTL_DEL, link->second.fd(), 0);
    links_.erase(link);
    blocked_.erase(key);
    owner_->Lost(key, why);
  }
}

void Links::CloseAll(const std::string& why) {
  while (!links_.empty()) {
    Drop(links_.begin()->first, why);
  }
  arriving_.clear();
}

void Links::Abandon() {
  links_.clear();
  arriving_.clear();
  listener_.Close();
}

std::size_t Links::UnsentTo(int key) const {
  const auto link = links_.find(key);
  return link == links_.end() ? 0 : link->second.unsent_bytes();
}

bool Links::HasUnsent() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link.second.has_unsent(); });
}

std::vector<int> Links::HalfRead(std::size_t* bytes) const {
  std::vector<int> keys;
  *bytes = 0;
  for (const auto& [key, link] : links_) {
    if (link.reading_bytes() > 0) {
      keys.push_back(key);
      *bytes += link.reading_bytes();
    }
  }
  return keys;
}

}  // namespace varve
