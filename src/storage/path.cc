#include <filesystem>
#include <system_error>
#include <vector>

#include "base/ascii.h"
#include "storage/http/http_storage.h"
#include "storage/http/url.h"
#include "storage/objects/registry.h"
#include "storage/s3/object_name.h"
#include "varve/storage.h"
#include "varve/storage_plugins.h"

namespace varve {
namespace {

constexpr std::string_view kSeparator = "://";

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

/// Returns all schemes that AnyStorage serves now, but "file".
std::vector<std::string> RemoteSchemes() {
  std::vector<std::string> schemes(s3::kSchemes.begin(), s3::kSchemes.end());
  schemes.insert(schemes.end(), {"https", "http"});
  for (std::string& scheme : RegisteredSchemes()) {
    schemes.push_back(std::move(scheme));
  }
  return schemes;
}

Status NoStorageServes(std::string_view path, std::string_view scheme, const Storage& storage) {
  std::string there;
  if (&storage == &AnyStorage()) {
    for (const std::string& one : RemoteSchemes()) {
      if (EqualIgnoringCase(one, scheme)) {
        return InvalidArgument(Quoted(path) + ": the scheme is written in small letters: " + one +
                               "://");
      }
      there += one + "://, ";
    }
  }
  return InvalidArgument(
      Quoted(path) + ": no storage serves " + std::string(scheme) + ":// here. There is " + there +
      "file://, and paths of mounted file systems; a directory of this name is " +
      Quoted("./" + std::string(path)) +
      ". A store that a Python program registers is seen by that program alone, not by the command "
      "line");
}

/// Returns the name of an object, with one slash between its components and none at its end, as a
/// path of the disk is understood: a script joins "s3://bucket/run/" and "/step-1". Errors:
/// InvalidArgument for a component "." or "..", which no object store understands.
Result<std::string> NameOfObject(std::string_view path, std::string_view scheme) {
  const std::size_t begin = scheme.size() + kSeparator.size();
  std::string name(path.substr(0, begin));
  if (path.substr(begin).starts_with('/')) {
    name += '/';  // No bucket; refused below.
  }
  for (std::size_t at = begin; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view component = path.substr(at, end - at);
    if (component == "." || component == "..") {
      return InvalidArgument(Quoted(path) + ": names in object stores have no \".\" and \"..\"");
    }
    if (!component.empty()) {
      name += name.size() > begin ? "/" : "";
      name += component;
    }
    at = end + 1;
  }
  VARVE_RETURN_IF_ERROR(RegisteredStorage(name) != nullptr ? CheckRegisteredName(name)
                                                           : s3::ParseObjectName(name).status());
  return name;
}

/// Refuses a path that was meant as a URL. The save would write to the disk of this node, where
/// the user does not look.
Status CheckIsNoMisspeltUrl(std::string_view path) {
  const std::string there = "; a directory of this name is " + Quoted("./" + std::string(path));
  const std::size_t blanks = std::min(path.find_first_not_of(" \t\r\n"), path.size());
  if (blanks > 0 && !SchemeOf(path.substr(blanks)).empty()) {
    return InvalidArgument(Quoted(path) + " begins with a blank, which no URL does" + there);
  }
  if (path.starts_with("arn:aws")) {
    return InvalidArgument(Quoted(path) +
                           " is a resource name: the URL of a checkpoint is "
                           "s3://bucket/key" +
                           there);
  }
  for (const std::string& name : RemoteSchemes()) {
    if (!path.starts_with(name + ":")) {
      continue;
    }
    const bool one_slash = path.starts_with(name + ":/");
    std::string text = Quoted(path);
    text += one_slash ? " has one slash of " : " has no slashes of ";
    text += name;
    text += name.starts_with("http") ? "://host/path" : "://bucket/key";
    text += one_slash ? ": pathlib takes the other away. Give the name as it is" : "";
    return InvalidArgument(text + there);
  }
  return Status::Ok();
}

/// Refuses "~" and "~/x". A shell would have replaced it; nobody means a directory of that name.
Status CheckIsNoHome(std::string_view path) {
  if (path != "~" && !path.starts_with("~/")) {
    return Status::Ok();
  }
  return InvalidArgument(
      Quoted(path) +
      ": only a shell replaces \"~\" by the home directory. Give the whole path, "
      "in Python os.path.expanduser(" +
      Quoted(path) + "); a directory of this name is " + Quoted("./" + std::string(path)));
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
    const std::string name(path);
    ConditionalWrites* const objects = storage.extras().conditional_writes;
    if (objects != nullptr && objects->Serves(name)) {
      return NameOfObject(path, scheme);
    }
    if (!http::SchemeOfUrl(name).empty() && storage.extras().unlisted_names != nullptr) {
      return http::CheckUrl(name);
    }
    const bool is_remote = !s3::SchemeOfObject(name).empty() ||
                           RegisteredStorage(name) != nullptr || !http::SchemeOfUrl(name).empty();
    if (is_remote && &storage == &PosixStorage()) {
      return InvalidArgument(Quoted(path) +
                             ": this needs a directory of a mounted file system. docs/storage.md "
                             "lists what takes names in object stores and on web servers");
    }
    return NoStorageServes(path, scheme, storage);
  }
  VARVE_RETURN_IF_ERROR(CheckIsNoMisspeltUrl(path));
  if (path.front() == '/' || (&storage != &PosixStorage() && &storage != &AnyStorage())) {
    return std::string(path);
  }
  VARVE_RETURN_IF_ERROR(CheckIsNoHome(path));
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
