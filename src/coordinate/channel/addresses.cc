// The addresses at which rank 0 listens, and the connections of the other ranks to them.

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file_descriptor.h"
#include "coordinate/channel/connection.h"

namespace varve {
namespace {

/// Time for one attempt to connect to one address.
constexpr auto kAttempt = std::chrono::seconds(5);
constexpr int kBacklog = 4096;
/// Addresses of one machine that other ranks try.
constexpr std::size_t kMostNames = 16;
/// An address in no network of one's own (RFC 5737): the way there is the default route.
constexpr const char* kElsewhere = "192.0.2.1";

std::string RandomHex() {
  std::array<unsigned char, 16> bytes{};
  (void)!::getentropy(bytes.data(), bytes.size());
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4U];
    text += "0123456789abcdef"[byte & 15U];
  }
  return text;
}

/// Returns the name of this machine and its network namespace; a new one where it is not known.
std::string ThisHost() {
  const std::string boot = BootId();
  std::array<char, 64> network{};
  const ssize_t size = ::readlink("/proc/self/ns/net", network.data(), network.size());
  return boot.empty() || size <= 0
             ? "unknown " + RandomHex()
             : boot + " " + std::string(network.data(), static_cast<std::size_t>(size));
}

/// Returns an IP address in digits; empty where it is none.
std::string InDigits(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* number = nullptr;
  if (address != nullptr && address->sa_family == AF_INET) {
    number = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address != nullptr && address->sa_family == AF_INET6) {
    number = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  }
  return number == nullptr ||
                 ::inet_ntop(address->sa_family, number, text.data(), text.size()) == nullptr
             ? ""
             : text.data();
}

/// Calls `use` with each address that a name has at a port.
void Resolve(const std::string& name, std::uint32_t port, int flags,
             const std::function<void(const addrinfo&)>& use) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found) == 0) {
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      use(*one);
    }
    ::freeaddrinfo(found);
  }
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct Interface {
  std::string name;
  int family = AF_UNSPEC;
  std::string address;
};

/// Returns the addresses of this machine's interfaces that are up, but for link-local ones.
std::vector<Interface> Interfaces() {
  std::vector<Interface> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return found;
  }
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const int family = one->ifa_addr == nullptr ? AF_UNSPEC : one->ifa_addr->sa_family;
    const auto* const six = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
    if ((one->ifa_flags & IFF_UP) != 0 &&
        (family == AF_INET || (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)))) {
      found.push_back({one->ifa_name, family, InDigits(one->ifa_addr)});
    }
  }
  ::freeifaddrs(all);
  return found;
}

/// Returns the addresses of the interfaces in GLOO_SOCKET_IFNAME, in its order; of each IPv4 first.
std::vector<std::string> OfInterfaces() {
  std::vector<std::string> found;
  std::istringstream names(Environment("GLOO_SOCKET_IFNAME"));
  const std::vector<Interface> all = names.str().empty() ? std::vector<Interface>() : Interfaces();
  for (std::string name; std::getline(names, name, ',');) {
    for (const int family : {AF_INET, AF_INET6}) {
      for (const Interface& one : all) {
        if (one.family == family && one.name == name) {
          found.push_back(one.address);
        }
      }
    }
  }
  return found;
}

/// Returns the addresses on the ways to other machines, those of this host's name, and then those
/// of all interfaces: on a machine without a default route whose MASTER_ADDR is its own name, which
/// /etc/hosts has as 127.0.1.1, there are no others.
std::vector<std::string> OfRoutes() {
  std::vector<std::string> found;
  for (const std::string& target : {Environment("MASTER_ADDR"), std::string(kElsewhere)}) {
    if (target.empty()) {
      continue;
    }
    Resolve(target, 9, 0, [&](const addrinfo& there) {
      // Connecting a datagram socket sends nothing: it picks the interface.
      const Socket probe(::socket(there.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_storage here{};
      socklen_t size = sizeof(here);
      auto* const address = reinterpret_cast<sockaddr*>(&here);
      if (::connect(probe.get(), there.ai_addr, there.ai_addrlen) == 0 &&
          ::getsockname(probe.get(), address, &size) == 0) {
        found.push_back(InDigits(address));
      }
    });
  }
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) {
    Resolve(name.data(), 9, 0,
            [&](const addrinfo& one) { found.push_back(InDigits(one.ai_addr)); });
  }
  for (Interface& one : Interfaces()) {
    // Each machine with Docker has an interface of one and the same address.
    if (!one.name.starts_with("docker")) {
      found.push_back(std::move(one.address));
    }
  }
  // Other machines do not reach the loopback device; ranks of this one try it first anyway.
  std::vector<std::string> others;
  for (std::string& one : found) {
    const bool loopback = one.empty() || one.starts_with("127.") || one == "::1";
    if (!loopback && others.size() < kMostNames &&
        std::find(others.begin(), others.end(), one) == others.end()) {
      others.push_back(std::move(one));
    }
  }
  return others;
}

/// Returns OfRoutes, found once in a process for each MASTER_ADDR: a name service may take seconds.
std::vector<std::string> KnownRoutes() {
  static std::mutex& mutex = *new std::mutex;
  static auto& known = *new std::map<std::string, std::vector<std::string>>;  // Guarded by it.
  const std::scoped_lock lock(mutex);
  std::vector<std::string>& found = known[Environment("MASTER_ADDR")];
  if (found.empty()) {
    found = OfRoutes();
  }
  return found;
}

/// Returns a socket that listens on a port of its own; of both families where `family` is AF_INET6.
Result<Socket> ListenOn(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage any{};
  any.ss_family = static_cast<sa_family_t>(family);
  const int off = 0;
  const socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (!socket.valid() ||
      (family == AF_INET6 &&
       ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0) ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any), size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return SystemError("cannot listen for the other ranks", errno);
  }
  return socket;
}

/// Waits until a socket is connected.
Status Finish(int fd, TimePoint deadline, int wake) {
  VARVE_RETURN_IF_ERROR(AwaitSocket(fd, POLLOUT, deadline, wake).Annotate("connect"));
  int error = 0;
  socklen_t size = sizeof(error);
  (void)::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? Status::Ok() : SystemError("connect", error);
}

/// Raises the limit for `more` descriptors beside those that are open. `next` is about their
/// number: the system gives the lowest that is free.
void AllowDescriptors(int next, int more) {
  constexpr rlim_t kForOthers = 256;  // What the program opens meanwhile.
  rlimit limit{};
  if (more == 0 || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return;
  }
  const rlim_t wanted =
      std::min(limit.rlim_max, static_cast<rlim_t>(next) + static_cast<rlim_t>(more) + kForOthers);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);  // Else Accept says what is missing.
  }
}

}  // namespace

Status AwaitSocket(int fd, short events, TimePoint deadline, int wake) {
  std::array<pollfd, 2> ready{{{fd, events, 0}, {wake, POLLIN, 0}}};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Now()).count();
    const int wait = deadline == TimePoint::max()
                         ? -1
                         : static_cast<int>(std::clamp<decltype(left)>(left, 0, INT_MAX));
    const int count = ::poll(ready.data(), ready.size(), wait);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (ready[1].revents != 0) {
      return Status(StatusCode::kCancelled, "given up");
    }
    return count > 0 ? Status::Ok() : SystemError("wait", count < 0 ? errno : ETIMEDOUT);
  }
}

std::string BootId() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot;
}

std::string ToString(const Address& address) {
  std::string text;
  for (const std::string& name : address.names) {
    text += (text.empty() ? "" : " or ") + name;
  }
  return (text.empty() ? "no known address" : text) + ", port " + std::to_string(address.port);
}

Result<std::pair<Socket, Address>> Listen(int peers) {
  Result<Socket> socket = ListenOn(AF_INET6);
  if (!socket.ok()) {
    socket = ListenOn(AF_INET);
  }
  VARVE_RETURN_IF_ERROR(socket.status());
  AllowDescriptors(socket->get(), peers);
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return SystemError("cannot listen for the other ranks", errno);
  }
  // The port is at the same place in the addresses of both families.
  Address address;
  address.port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  address.version = VARVE_VERSION_STRING;
  address.host = ThisHost();
  address.names = OfInterfaces();
  if (address.names.empty()) {
    address.names = KnownRoutes();
  }
  address.token = RandomHex();
  return std::pair(std::move(*socket), std::move(address));
}

Result<Socket> Connect(const Address& address, TimePoint deadline, int wake) {
  std::vector<std::string> names = address.names;
  if (address.host == ThisHost()) {
    names.insert(names.begin(), "127.0.0.1");
  }
  std::optional<Socket> connected;
  Status first;  // Error: of the likeliest address.
  for (const std::string& name : names) {
    if (connected || Now() >= deadline) {
      break;
    }
    Resolve(name, address.port, AI_NUMERICHOST, [&](const addrinfo& there) {
      Socket socket(::socket(there.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      Status status;
      if (!socket.valid()) {
        status = SystemError("socket", errno);
      } else if (::connect(socket.get(), there.ai_addr, there.ai_addrlen) != 0) {
        status = errno == EINPROGRESS
                     ? Finish(socket.get(), std::min(deadline, Now() + kAttempt), wake)
                     : SystemError("connect", errno);
      }
      if (status.ok()) {
        connected = std::move(socket);
      } else if (first.ok()) {
        first = std::move(status);
      }
    });
  }
  if (connected) {
    return *std::move(connected);
  }
  return first.ok() ? SystemError("no address is known for port " + std::to_string(address.port),
                                  EADDRNOTAVAIL)
                    : first;
}

}  // namespace varve
