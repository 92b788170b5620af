/// Objects of S3 and of servers that speak its protocol, as a Storage. Names are "s3://bucket/key",
/// or of another scheme of kSchemes, whose settings the storage has then.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "storage/objects/object_storage.h"
#include "storage/s3/client.h"
#include "varve/storage.h"

namespace varve::s3 {

class S3Storage final : public ObjectStorage {
 public:
  /// The arguments are those of S3Client.
  S3Storage(const Settings& settings, CredentialsFunction credentials,
            std::shared_ptr<Traffic> traffic = nullptr, SendFunction send = {})
      : ObjectStorage(std::string(settings.scheme),
                      std::make_shared<S3Client>(settings, std::move(credentials),
                                                 std::move(traffic), std::move(send)),
                      {.part_bytes = settings.part_bytes, .weak_publish = settings.weak_publish}) {}
};

/// Returns the storage of all names of a scheme of kSchemes, with the settings and keys of the
/// process's environment, which are read at the first call. Never destroyed. Errors:
/// InvalidArgument for settings that cannot be used.
Result<Storage*> ProcessS3Storage(std::string_view scheme);

/// Returns how this process reaches the storage of a scheme, for StorageOfAccess in another one: as
/// SharedAccess::Describe. Errors: as ProcessS3Storage.
Result<std::string> AccessOf(std::string_view scheme);

/// Returns the storage of a scheme with the settings and keys of another process, whose AccessOf
/// has made `access`. Several with the same access share one. Errors: as ProcessS3Storage; DataLoss
/// for what AccessOf has not made.
Result<std::shared_ptr<Storage>> StorageOfAccess(std::string_view scheme,
                                                 const std::string& access);

}  // namespace varve::s3
