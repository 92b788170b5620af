#include "storage/objects/registry.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <memory>
#include <utility>

#include "storage/objects/copy_on_write.h"
#include "storage/objects/object_storage.h"
#include "storage/s3/object_name.h"
#include "varve/storage_plugins.h"

namespace varve {
namespace {

constexpr std::string_view kSeparator = "://";

/// Served, or kept free, by Varve itself, beside s3::kSchemes.
constexpr std::array<std::string_view, 3> kReserved = {"file", "http", "https"};

using Stores = std::map<std::string, Storage*, std::less<>>;

CopyOnWrite<Stores>& AllStores() {
  static CopyOnWrite<Stores>& stores = *new CopyOnWrite<Stores>();
  return stores;
}

bool IsReserved(std::string_view scheme) {
  return std::find(kReserved.begin(), kReserved.end(), scheme) != kReserved.end() ||
         std::find(s3::kSchemes.begin(), s3::kSchemes.end(), scheme) != s3::kSchemes.end();
}

Status CheckScheme(const std::string& scheme) {
  const std::string what = "register a storage for \"" + scheme + "\": ";
  const bool lower = std::none_of(scheme.begin(), scheme.end(),
                                  [](unsigned char c) { return std::isupper(c) != 0; });
  if (scheme.size() < 2 || !lower || SchemeOf(scheme + "://x") != scheme) {
    return InvalidArgument(what +
                           "a scheme is a lower-case letter and then lower-case letters, digits, "
                           "'+', '-' and '.', as \"mystore\" for mystore://bucket/run");
  }
  return IsReserved(scheme) ? InvalidArgument(what + "Varve serves " + scheme +
                                              ":// itself; choose another scheme")
                            : Status::Ok();
}

}  // namespace

std::string_view SchemeOf(std::string_view name) {
  const std::size_t end = name.find(kSeparator);
  if (end == std::string_view::npos || end == 0 ||
      std::isalpha(static_cast<unsigned char>(name[0])) == 0) {
    return {};
  }
  for (const char c : name.substr(0, end)) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '+' && c != '-' && c != '.') {
      return {};
    }
  }
  return name.substr(0, end);
}

Storage* RegisteredStorage(std::string_view name) {
  const std::string_view scheme = SchemeOf(name);
  if (scheme.empty()) {
    return nullptr;
  }
  const Stores& stores = AllStores().Get();
  const auto found = stores.find(scheme);
  return found == stores.end() ? nullptr : found->second;
}

Status CheckRegisteredName(std::string_view name) {
  const std::string_view scheme = SchemeOf(name);
  std::string_view rest = name.substr(scheme.size() + kSeparator.size());
  while (true) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view component = rest.substr(0, end);
    if (component.empty() || component == "." || component == "..") {
      return InvalidArgument("\"" + std::string(name) + "\": a name of " + std::string(scheme) +
                             ":// is components with '/' between them, none of them empty, \".\" "
                             "or \"..\"");
    }
    if (end == rest.size()) {
      return Status::Ok();
    }
    rest.remove_prefix(end + 1);
  }
}

Status RegisterObjectStore(const std::string& scheme, std::shared_ptr<ObjectStore> store,
                           const ObjectStoreOptions& options) {
  constexpr std::uint64_t kLeastPart = std::uint64_t{1} << 20;
  VARVE_RETURN_IF_ERROR(CheckScheme(scheme));
  if (store == nullptr || options.part_bytes < kLeastPart) {
    return InvalidArgument("register a storage for \"" + scheme +
                           "\": want a store, and parts of at least 1 MiB, not of " +
                           std::to_string(options.part_bytes) + " bytes");
  }
  // Never destroyed: files that are open refer to it.
  auto* const storage = new ObjectStorage(scheme, std::move(store), options);
  const bool registered = AllStores().Update([&](Stores* stores) {
    const auto [place, added] = stores->try_emplace(scheme, storage);
    place->second = added || options.replace ? storage : place->second;
    return added || options.replace;
  });
  if (!registered) {
    delete storage;
    return AlreadyExists("register a storage for \"" + scheme +
                         "\": one is registered already; pass replace to put this one in its "
                         "place");
  }
  return Status::Ok();
}

Status UnregisterObjectStore(const std::string& scheme) {
  const bool removed =
      AllStores().Update([&](Stores* stores) { return stores->erase(scheme) > 0; });
  return removed ? Status::Ok()
                 : NotFound("unregister the storage of \"" + scheme + "\": none is registered");
}

std::vector<std::string> RegisteredSchemes() {
  std::vector<std::string> schemes;
  for (const auto& [scheme, storage] : AllStores().Get()) {
    schemes.push_back(scheme);
  }
  return schemes;
}

}  // namespace varve
