#include <cctype>
#include <filesystem>
#include <system_error>

#include "storage/http/http_storage.h"
#include "storage/http/url.h"
#include "storage/s3/object_name.h"
#include "varve/storage.h"

namespace varve {
namespace {

constexpr std::string_view kSeparator = "://";

/// Returns the scheme of "scheme://rest" (RFC 3986, section 3.1); empty for a path without one.
std::string_view SchemeOf(std::string_view path) {
  const std::size_t end = path.find(kSeparator);
  if (end == std::string_view::npos || end == 0 ||
      std::isalpha(static_cast<unsigned char>(path[0])) == 0) {
    return {};
  }
  for (const char c : path.substr(0, end)) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '+' && c != '-' && c != '.') {
      return {};
    }
  }
  return path.substr(0, end);
}

std::string Quoted(std::string_view path) {
  std::string quoted("\"");
  quoted += path;
  quoted += '"';
  return quoted;
}

/// Returns the path of a "file://" URL whose part behind the slashes is `rest`.
Result<std::string> PathOfFileUrl(std::string_view url, std::string_view rest) {
  constexpr std::string_view kThisHost = "localhost/";
  if (rest.starts_with(kThisHost)) {
    rest.remove_prefix(kThisHost.size() - 1);
  }
  if (!rest.starts_with('/')) {
    return InvalidArgument(Quoted(url) +
                           ": a file:// URL holds an absolute path of this host, as in "
                           "file:///data/run; for a relative path leave file:// out");
  }
  return std::string(rest);
}

}  // namespace

Result<std::string> ResolvePath(std::string_view path, const Storage& storage) {
  if (path.empty()) {
    return InvalidArgument("the path is empty");
  }
  if (path.find('\0') != std::string_view::npos) {
    return InvalidArgument(Quoted(path.substr(0, path.find('\0'))) +
                           " and more cannot be a path: it holds a NUL character");
  }
  if (const std::string_view scheme = SchemeOf(path); !scheme.empty()) {
    if (scheme == "file") {
      return PathOfFileUrl(path, path.substr(scheme.size() + kSeparator.size()));
    }
    std::string name(path);
    ConditionalWrites* const objects = storage.extras().conditional_writes;
    if (objects != nullptr && objects->Serves(name)) {
      while (name.ends_with('/') && name.size() > scheme.size() + kSeparator.size() + 1) {
        name.pop_back();
      }
      VARVE_RETURN_IF_ERROR(s3::ParseObjectName(name).status());
      return name;
    }
    if (!http::SchemeOfUrl(name).empty() && storage.extras().unlisted_names != nullptr) {
      return http::CheckUrl(name);
    }
    const bool remote = !s3::SchemeOfObject(name).empty() || !http::SchemeOfUrl(name).empty();
    if (remote && &storage == &PosixStorage()) {
      return InvalidArgument(Quoted(path) +
                             ": this needs a directory of a mounted file system. Object storage "
                             "serves save, async_save, load, read and the command line, web "
                             "servers what reads: see docs/storage.md");
    }
    return InvalidArgument(
        Quoted(path) + ": no storage serves " + std::string(scheme) + ":// here. There is " +
        (&storage == &AnyStorage() ? "s3://, r2://, weka://, https://, http://, " : "") +
        "file://, and paths of mounted file systems; a "
        "directory of this name is " +
        Quoted("./" + std::string(path)));
  }
  for (const std::string_view scheme : {"s3", "r2", "weka", "https", "http"}) {
    const std::string name(scheme);
    if (path.starts_with(name + ":/")) {
      return InvalidArgument(Quoted(path) + " has one slash of " + name + "://" +
                             (name.starts_with("http") ? "host/path" : "bucket/key") +
                             ": pathlib takes the other away. Give the name as it "
                             "is; a directory of this name is " +
                             Quoted("./" + std::string(path)));
    }
  }
  if (path.front() == '/' || (&storage != &PosixStorage() && &storage != &AnyStorage())) {
    return std::string(path);
  }
  std::error_code error;
  const auto working_directory = std::filesystem::current_path(error);
  if (error) {
    return Unavailable(Quoted(path) + " is relative and the working directory cannot be found: " +
                       error.message() + "; give an absolute path");
  }
  return JoinPath(working_directory.string(), path);
}

bool IsUnlisted(Storage& storage, const std::string& name) {
  UnlistedNames* const unlisted = storage.extras().unlisted_names;
  return unlisted != nullptr && unlisted->IsUnlisted(name);
}

Result<std::string> ResolveTarget(std::string_view path, const Storage& storage) {
  VARVE_ASSIGN_OR_RETURN(std::string name, ResolvePath(path, storage));
  UnlistedNames* const unlisted = storage.extras().unlisted_names;
  return unlisted != nullptr && unlisted->IsUnlisted(name)
             ? Result<std::string>(http::ReadOnly(name))
             : std::move(name);
}

}  // namespace varve
