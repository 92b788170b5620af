// The storages of this process. A forked child begins with none: in its parent's, a lock may be
// held or a permit of traffic taken by a thread that it does not have.

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/of_process.h"
#include "storage/s3/keys/credentials.h"
#include "storage/s3/keys/described.h"
#include "storage/s3/s3_storage.h"

namespace varve::s3 {
namespace {

class Storages {
 public:
  Result<Storage*> Of(std::string_view scheme) {
    const std::scoped_lock lock(mutex_);
    std::shared_ptr<Storage>& storage = by_scheme_[scheme];
    if (storage == nullptr) {  // Settings that could not be used may have been put right.
      const Environment environment = EnvironmentOf(scheme, ProcessEnvironment);
      VARVE_ASSIGN_OR_RETURN(storage,
                             Make(environment, scheme, ProcessCredentials(environment, scheme)));
    }
    return storage.get();
  }

  Result<std::shared_ptr<Storage>> OfAccess(std::string_view scheme, const std::string& access) {
    constexpr std::size_t kMost = 8;  // Trainers of one host whose settings differ.
    const std::scoped_lock lock(mutex_);
    for (const OfOther& one : of_others_) {
      if (one.scheme == scheme && one.access == access) {
        return one.storage;
      }
    }
    VARVE_ASSIGN_OR_RETURN(Access described, DecodeAccess(access));
    const Environment environment = EnvironmentOf(scheme, std::move(described.environment));
    auto keys = described.keys ? KeysUntilTheirEnd(*std::move(described.keys))
                               : ProcessCredentials(environment, scheme);
    VARVE_ASSIGN_OR_RETURN(auto storage, Make(environment, scheme, std::move(keys)));
    of_others_.push_back({scheme, access, storage});
    if (of_others_.size() > kMost) {
      of_others_.pop_front();
    }
    return storage;
  }

 private:
  struct OfOther {
    std::string_view scheme;
    std::string access;
    std::shared_ptr<Storage> storage;
  };

  Result<std::shared_ptr<Storage>> Make(const Environment& environment, std::string_view scheme,
                                        CredentialsFunction keys) {
    VARVE_ASSIGN_OR_RETURN(const Settings settings, ReadSettings(environment, scheme));
    auto traffic = TrafficOf(settings.traffic);
    return std::shared_ptr<Storage>(
        std::make_shared<S3Storage>(settings, std::move(keys), std::move(traffic)));
  }

  /// Returns the traffic of all storages with these limits, whichever servers they use.
  std::shared_ptr<Traffic> TrafficOf(const TrafficLimits& limits) {
    for (const auto& [known, traffic] : traffic_) {
      if (known == limits) {
        return traffic;
      }
    }
    traffic_.emplace_back(limits, std::make_shared<Traffic>(limits));
    return traffic_.back().second;
  }

  std::mutex mutex_;  // Guards all below.
  std::map<std::string_view, std::shared_ptr<Storage>> by_scheme_;
  std::deque<OfOther> of_others_;
  std::vector<std::pair<TrafficLimits, std::shared_ptr<Traffic>>> traffic_;
};

Storages& ProcessStorages() {
  static auto& storages = *new OfProcess<Storages>();
  return storages.Get();
}

}  // namespace

Result<Storage*> ProcessS3Storage(std::string_view scheme) { return ProcessStorages().Of(scheme); }

Result<std::string> AccessOf(std::string_view scheme) {
  VARVE_RETURN_IF_ERROR(ProcessS3Storage(scheme).status());
  VARVE_ASSIGN_OR_RETURN(auto keys, KeysOfProgram(scheme));
  return EncodeAccess({ProcessEnvironment, std::move(keys)});
}

Result<std::shared_ptr<Storage>> StorageOfAccess(std::string_view scheme,
                                                 const std::string& access) {
  return ProcessStorages().OfAccess(scheme, access);
}

}  // namespace varve::s3
