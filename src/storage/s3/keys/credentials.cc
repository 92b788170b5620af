#include "storage/s3/keys/credentials.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/events.h"
#include "base/guarded.h"
#include "base/time_source.h"
#include "storage/s3/keys/credential_sources.h"

namespace varve::s3 {
namespace {

constexpr std::int64_t kEarly = 300;  // Seconds before their end that keys are asked for again.
constexpr std::int64_t kPause = 10;   // After a failure, while the old keys are good.

std::int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(TimeOfDay()).count();
}

MaybeKeys StaticKeys(const Environment& environment) {
  VARVE_ASSIGN_OR_RETURN(const auto keys, KeysOfEnvironment(environment));
  return keys ? std::optional(FoundKeys{*keys, 0}) : std::nullopt;
}

MaybeKeys NoKeys(const Environment& environment) {
  const std::string value = environment("VARVE_S3_UNSIGNED").value_or("0");
  if (value != "0" && value != "1") {
    return InvalidArgument("VARVE_S3_UNSIGNED=" + value + ": want 1 or 0");
  }
  return value == "1" ? std::optional(FoundKeys{}) : std::nullopt;
}

/// Finds keys, and remembers them for as long as they are good.
class Keys {
 public:
  explicit Keys(Environment environment) : environment_(std::move(environment)) {}

  Result<Credentials> Get() {
    const std::scoped_lock lock(mutex_);
    const std::int64_t now = UnixSeconds();
    if (found_ && (found_->expires == 0 || now < std::max(found_->expires - kEarly, not_before_))) {
      return found_->keys;
    }
    auto keys = Find();
    if (!keys.ok() && found_ && now < found_->expires) {
      not_before_ = now + kPause;
      (void)Guarded([&] {
        ReportEvent({.level = EventLevel::kWarning,
                     .message = "the keys for S3 end in " + std::to_string(found_->expires - now) +
                                " s and cannot be renewed: " + keys.status().message()});
        return Status::Ok();
      });
      return found_->keys;
    }
    VARVE_RETURN_IF_ERROR(keys.status());
    for (std::string* const text :
         {&keys->keys.access_key, &keys->keys.secret_key, &keys->keys.session_token}) {
      while (text->ends_with('\n') || text->ends_with('\r') || text->ends_with(' ')) {
        text->pop_back();  // Of a file that was put into the environment.
      }
      if (std::any_of(text->begin(), text->end(),
                      [](char c) { return static_cast<unsigned char>(c) < ' '; })) {
        return InvalidArgument("the keys for S3 hold control characters");
      }
    }
    found_ = *std::move(keys);
    return found_->keys;
  }

 private:
  Result<FoundKeys> Find() {
    for (const auto source :
         {NoKeys, StaticKeys, KeysOfWebIdentity, KeysOfProfile, KeysOfContainer, KeysOfInstance}) {
      VARVE_ASSIGN_OR_RETURN(auto keys, source(environment_));
      if (keys) {
        return *std::move(keys);
      }
    }
    return FailedPrecondition(
        "no keys for S3: there are none in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, in the "
        "profile (~/.aws/credentials; AWS_PROFILE names it), of a web identity, a container or an "
        "instance; for a public bucket set VARVE_S3_UNSIGNED=1");
  }

  const Environment environment_;
  std::mutex mutex_;  // Guards all below; held while keys are asked for.
  std::optional<FoundKeys> found_;
  std::int64_t not_before_ = 0;
};

}  // namespace

CredentialsFunction ProcessCredentials(Environment environment) {
  return [keys = std::make_shared<Keys>(std::move(environment))] { return keys->Get(); };
}

}  // namespace varve::s3
