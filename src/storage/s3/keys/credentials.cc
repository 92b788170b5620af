#include "storage/s3/keys/credentials.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/events.h"
#include "base/of_process.h"
#include "base/time_source.h"
#include "storage/objects/copy_on_write.h"
#include "storage/s3/keys/credential_sources.h"
#include "varve/storage_plugins.h"

namespace varve::s3 {
namespace {

constexpr std::int64_t kEarly = 300;  // Seconds before their end that keys are asked for again.
constexpr std::int64_t kPause = 10;   // After a failure, while the old keys are good.

/// A function that the program has set. One thread of a process calls it at a time.
struct GivenFunction {
  const S3KeysFunction function;
  OfProcess<std::mutex> mutex;
};

/// Functions that the program has set, by scheme.
using Given = std::shared_ptr<GivenFunction>;
CopyOnWrite<std::map<std::string_view, Given>>& AllGiven() {
  static auto& given = *new CopyOnWrite<std::map<std::string_view, Given>>();
  return given;
}

/// Returns the function that the program has set for a scheme; null where it has set none.
Given GivenFor(std::string_view scheme) {
  const auto& all = AllGiven().Get();
  const auto found = all.find(scheme);
  return found == all.end() ? nullptr : found->second;
}

/// Removes what may stand at the end of keys that came from a file.
Result<FoundKeys> Trimmed(FoundKeys keys) {
  for (std::string* const text :
       {&keys.keys.access_key, &keys.keys.secret_key, &keys.keys.session_token}) {
    while (text->ends_with('\n') || text->ends_with('\r') || text->ends_with(' ')) {
      text->pop_back();
    }
    if (std::any_of(text->begin(), text->end(),
                    [](char c) { return static_cast<unsigned char>(c) < ' '; })) {
      return InvalidArgument("the keys for S3 hold control characters");
    }
  }
  return keys;
}

Result<FoundKeys> Ask(GivenFunction& given, std::string_view scheme) {
  const std::string what = "the function that gives the keys for " + std::string(scheme) + "://";
  const std::scoped_lock lock(given.mutex.Get());
  VARVE_ASSIGN_OR_RETURN(S3Keys keys, given.function().Annotate(what));
  if (keys.access_key.empty() || keys.secret_key.empty()) {
    return FailedPrecondition(what + " gives no access key, or no secret key");
  }
  if (keys.expires_seconds != 0 && keys.expires_seconds <= UnixSeconds()) {
    return FailedPrecondition(what + " gives keys that ended " +
                              std::to_string(UnixSeconds() - keys.expires_seconds) + " s ago");
  }
  return FoundKeys{
      {std::move(keys.access_key), std::move(keys.secret_key), std::move(keys.session_token)},
      keys.expires_seconds};
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
  Keys(Environment environment, std::string_view scheme)
      : environment_(std::move(environment)), scheme_(scheme) {}

  Result<Credentials> Get() {
    const std::scoped_lock lock(mutex_);
    if (Given given = GivenFor(scheme_); given != given_) {
      given_ = std::move(given);
      found_.reset();  // Another's.
      not_before_ = 0;
    }
    const std::int64_t now = UnixSeconds();
    const bool good = found_ && (found_->expires == 0 || now < found_->expires);
    if (good && (found_->expires == 0 || now < std::max(found_->expires - kEarly, not_before_))) {
      return found_->keys;
    }
    auto keys = Find();
    if (!keys.ok() && good) {
      not_before_ = now + kPause;
      ReportEvent([&] {
        return Event{.level = EventLevel::kWarning,
                     .message = "the keys for S3 end in " + std::to_string(found_->expires - now) +
                                " s and cannot be renewed: " + keys.status().message()};
      });
      return found_->keys;
    }
    VARVE_RETURN_IF_ERROR(keys.status());
    VARVE_ASSIGN_OR_RETURN(found_, Trimmed(*std::move(keys)));
    return found_->keys;
  }

 private:
  Result<FoundKeys> Find() {
    if (given_ != nullptr) {
      return Ask(*given_, scheme_);
    }
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
  const std::string_view scheme_;
  std::mutex mutex_;  // Guards all below; held while keys are asked for.
  Given given_;       // What the program had set when keys were last wanted.
  std::optional<FoundKeys> found_;
  std::int64_t not_before_ = 0;
};

}  // namespace

CredentialsFunction ProcessCredentials(Environment environment, std::string_view scheme) {
  return [keys = std::make_shared<Keys>(std::move(environment), scheme)] { return keys->Get(); };
}

MaybeKeys KeysOfProgram(std::string_view scheme) {
  const Given given = GivenFor(scheme);
  if (given == nullptr) {
    return std::optional<FoundKeys>();
  }
  VARVE_ASSIGN_OR_RETURN(FoundKeys keys, Ask(*given, scheme));
  VARVE_ASSIGN_OR_RETURN(keys, Trimmed(std::move(keys)));
  return std::optional(std::move(keys));
}

CredentialsFunction KeysUntilTheirEnd(FoundKeys keys) {
  return [keys = std::move(keys)]() -> Result<Credentials> {
    const std::int64_t now = UnixSeconds();
    if (keys.expires != 0 && now >= keys.expires) {
      return FailedPrecondition("the keys ended " + std::to_string(now - keys.expires) +
                                " s ago. A function of the trainer gave them, which nobody can "
                                "call in this process: give keys that last longer than a save, or "
                                "a source that every process can ask (docs/storage.md)");
    }
    return keys.keys;
  };
}

}  // namespace varve::s3

namespace varve {

Status SetS3Keys(std::string_view scheme, S3KeysFunction function) {
  const auto* const known = std::find(s3::kSchemes.begin(), s3::kSchemes.end(), scheme);
  if (known == s3::kSchemes.end()) {
    return InvalidArgument("set the keys for \"" + std::string(scheme) +
                           "\": want s3, r2 or weka, the schemes of servers that speak S3's "
                           "protocol");
  }
  const s3::Given given =
      function ? std::make_shared<s3::GivenFunction>(std::move(function)) : nullptr;
  (void)s3::AllGiven().Update([&](auto* all) {
    (*all)[*known] = given;
    return true;
  });
  return Status::Ok();
}

}  // namespace varve
