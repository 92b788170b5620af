#include "storage/s3/credentials.h"

#include <mutex>
#include <optional>
#include <utility>

namespace varve::s3 {
namespace {

/// Reads keys once, and remembers them.
class Keys {
 public:
  explicit Keys(Environment environment) : environment_(std::move(environment)) {}

  Result<Credentials> Get() {
    const std::scoped_lock lock(mutex_);
    if (!found_) {
      VARVE_ASSIGN_OR_RETURN(found_, Find());
    }
    return *found_;
  }

 private:
  Result<Credentials> Find() {
    const std::string unsigned_requests = environment_("VARVE_S3_UNSIGNED").value_or("0");
    if (unsigned_requests == "1") {
      return Credentials{};
    }
    if (unsigned_requests != "0") {
      return InvalidArgument("VARVE_S3_UNSIGNED=" + unsigned_requests + ": want 1 or 0");
    }
    VARVE_ASSIGN_OR_RETURN(auto keys, ReadStaticCredentials(environment_));
    if (keys) {
      return *std::move(keys);
    }
    return FailedPrecondition(
        "no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or put them into a "
        "profile of ~/.aws/credentials (AWS_PROFILE names it); for a public bucket set "
        "VARVE_S3_UNSIGNED=1");
  }

  const Environment environment_;
  std::mutex mutex_;
  std::optional<Credentials> found_;
};

}  // namespace

CredentialsFunction ProcessCredentials(Environment environment) {
  return [keys = std::make_shared<Keys>(std::move(environment))] { return keys->Get(); };
}

}  // namespace varve::s3
