// Channels for programs in C++: one call for all messages, and a rendezvous by files.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include <unistd.h>

#include "base/seconds.h"
#include "base/time_source.h"
#include "coordinate/channel/channel.h"
#include "varve/coordinator.h"

namespace varve {
namespace {

/// Such a program ends no call: time in which its last messages leave.
constexpr auto kLastMessages = std::chrono::seconds(5);

}  // namespace

Result<std::unique_ptr<Coordinator>> MakeSocketCoordinator(Rendezvous& rendezvous,
                                                           const SocketOptions& options) {
  if (options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument("rank " + std::to_string(options.rank) + " of " +
                           std::to_string(options.size) + " ranks");
  }
  if (options.size == 1) {
    return MakeSingleProcessCoordinator();
  }
  auto channel = std::make_unique<Channel>(ChannelOptions{.rank = options.rank,
                                                          .size = options.size,
                                                          .log = options.log,
                                                          .one_call = true,
                                                          .last_messages = kLastMessages});
  const std::chrono::duration<double> limit = options.timeout;
  VARVE_RETURN_IF_ERROR(channel->Enter("connect " + options.key, limit.count(),
                                       After(Now(), limit.count()), rendezvous, options.key));
  return std::unique_ptr<Coordinator>(std::move(channel));
}

std::unique_ptr<Rendezvous> MakeDirectoryRendezvous(std::string directory) {
  class Files final : public Rendezvous {
   public:
    explicit Files(std::string directory) : directory_(std::move(directory)) {}

    Status Set(const std::string& key, const std::string& value) override {
      const std::string part = NameOf(key) + "." + std::to_string(::getpid()) + ".part";
      std::ofstream file(part, std::ios::binary);
      file << value;
      file.close();
      return file && std::rename(part.c_str(), NameOf(key).c_str()) == 0
                 ? Status::Ok()
                 : Unavailable("write " + NameOf(key)).With({.path = part, .system_error = errno});
    }
    Result<std::optional<std::string>> Get(const std::string& key) override {
      std::ifstream file(NameOf(key), std::ios::binary);
      return file ? std::optional(std::string(std::istreambuf_iterator<char>(file), {}))
                  : std::nullopt;
    }

   private:
    /// Returns the file of a key; Set renames, so that it is seen whole or not at all.
    [[nodiscard]] std::string NameOf(std::string key) const {
      std::replace(key.begin(), key.end(), '/', '-');
      return directory_ + "/" + key;
    }

    std::string directory_;
  };
  return std::make_unique<Files>(std::move(directory));
}

}  // namespace varve
