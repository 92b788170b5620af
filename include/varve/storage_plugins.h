/// What a program adds to AnyStorage(): object stores of its own, under schemes of their own, and
/// keys for s3://.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "varve/status.h"

namespace varve {

/// An object of an ObjectStore, a folder, or an unfinished upload.
struct StoreEntry {
  std::string name;
  std::uint64_t size = 0;
  std::int64_t modified_ns = 0;  ///< Unix time; 0: not known. Of an upload: when it was begun.
  std::string version;           ///< Another one after each Put; empty: the store has none.
  bool is_folder = false;        ///< Objects lie below it; `name` has no '/' at its end.
  std::string upload;            ///< The id of an unfinished upload; empty for all else.
  std::string mark;              ///< By Head: that StartMarkedUpload had; empty: not known.
};

/// A store of objects: eight functions with which Varve saves to it and loads from it, and what a
/// store may have beyond that. A name is
/// that of the user without "scheme://": components with '/' between them, none of them empty, "."
/// or "..". An object is visible whole or not at all, and what was written is listed at once.
/// Threads: called by several at once. Every function waits, and tries again, for as long as the
/// store's users want; the engine repeats no call but Put with `if_absent`.
/// Errors of all: Unavailable where a retry may help, OutOfSpace, FailedPrecondition where access
/// is refused.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  /// Returns size, time and version of an object. A folder only where the store knows by its name
  /// that it is there and no object, as a bucket. Errors: NotFound.
  virtual Result<StoreEntry> Head(const std::string& name) = 0;

  /// Fills `into` with the object's bytes from `offset` on. Errors: NotFound; DataLoss where it
  /// ends before; FailedPrecondition where its version is not `version` any more (empty: any).
  virtual Status Read(const std::string& name, std::uint64_t offset, std::span<std::byte> into,
                      const std::string& version) = 0;

  /// Returns the objects whose names begin with `prefix`, which is empty or ends with '/', and have
  /// no '/' behind it; and a folder for each component that has one. In any order. With
  /// `unfinished` returns instead all unfinished uploads whose names begin with `prefix`; nothing
  /// where the store cannot know them.
  virtual Result<std::vector<StoreEntry>> List(const std::string& prefix, bool unfinished) = 0;

  /// Writes a whole object in the place of any that is there; with `if_absent` only where there is
  /// none, so that one of several writers succeeds. Errors: AlreadyExists; Unimplemented where the
  /// store cannot do it `if_absent`.
  virtual Status Put(const std::string& name, std::span<const std::byte> data, bool if_absent) = 0;

  /// Removes objects. Those that are not there are a success.
  virtual Status Remove(const std::vector<std::string>& names) = 0;

  /// Begins an upload in parts and returns its id. All parts but the last have `part_bytes`.
  virtual Result<std::string> StartUpload(const std::string& name, std::uint64_t part_bytes) = 0;

  /// Takes the part `number`, counted from 1; returns what EndUpload gets for it. Parts come in any
  /// order, several at once.
  virtual Result<std::string> UploadPart(const std::string& name, const std::string& upload,
                                         int number, std::span<const std::byte> data) = 0;

  /// Makes the object visible, of these parts in their order. Null: gives the upload up, which is a
  /// success where there is none.
  virtual Status EndUpload(const std::string& name, const std::string& upload,
                           const std::vector<std::string>* parts) = 0;

  // ---- optional: what a store has beyond that ----

  /// Checks a name before it is used: of an object, or with `is_object` false of what may also be a
  /// folder. Makes no request. Errors: InvalidArgument.
  virtual Status CheckName(const std::string& /*name*/, bool /*is_object*/) { return Status::Ok(); }

  /// Reads as Read does, into several spans of memory in their order. By itself it reads into
  /// memory of its own and copies.
  virtual Status ReadParts(const std::string& name, std::uint64_t offset,
                           std::span<const std::span<std::byte>> parts, const std::string& version);

  /// Returns the names of all objects that begin with `prefix`, in folders too. Unimplemented: they
  /// are listed folder by folder.
  virtual Result<std::vector<std::string>> ListAll(const std::string& /*prefix*/) {
    return Unimplemented("this store lists one folder at a time");
  }

  /// Begins an upload as StartUpload does. The object will carry `mark`: where EndUpload got no
  /// answer, StoreEntry::mark tells whether this upload made the object.
  virtual Result<std::string> StartMarkedUpload(const std::string& name, std::uint64_t part_bytes,
                                                const std::string& /*mark*/) {
    return StartUpload(name, part_bytes);
  }

  /// Returns true where a Put whose error is OutOfSpace, FailedPrecondition or InvalidArgument has
  /// written nothing and never will, whatever was tried before: one that may have been carried out
  /// is Unavailable. False where the store, or a library below it, may try again by itself and
  /// return what the last try got.
  [[nodiscard]] virtual bool RefusalsAreFinal() const { return false; }

  /// Returns the time by which the store dates its objects, Unix time in ns; 0: this host's.
  virtual std::int64_t NowNs() { return 0; }
};

struct ObjectStoreOptions {
  /// Size of the parts of an upload, and of the largest object that is written by one Put. Bytes,
  /// >= 1 MiB. Files of more than 10,000 parts have larger ones.
  std::uint64_t part_bytes = std::uint64_t{16} << 20;
  /// False: the store has no uploads in parts. A file is held in memory until it is whole.
  bool uploads = true;
  /// False: a save fails where Put overwrites although `if_absent` is given, or cannot do that.
  /// True: it goes on with a warning. Of two saves that publish one name in the same moment the
  /// later one then wins without a message.
  bool weak_publish = true;
  /// Takes the place of a store that has been registered for the scheme. Files that are open stay
  /// with the one before, which is kept until the process ends.
  bool replace = false;
};

/// Makes AnyStorage() serve the names "scheme://..." of this process from a store. Threads: any.
/// Errors: InvalidArgument for a scheme that is not lower-case letters, digits, '+', '-' and '.'
/// (RFC 3986), at least two characters, or that Varve serves itself; AlreadyExists.
Status RegisterObjectStore(const std::string& scheme, std::shared_ptr<ObjectStore> store,
                           const ObjectStoreOptions& options = {});

/// Takes a registration back. Files that are open stay usable. Errors: NotFound.
Status UnregisterObjectStore(const std::string& scheme);

/// Returns the schemes that have been registered, sorted.
std::vector<std::string> RegisteredSchemes();

/// Keys for a server that speaks S3's protocol.
struct S3Keys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;         ///< Empty: none.
  std::int64_t expires_seconds = 0;  ///< Unix time; 0: they have no end.
};

/// Sets the function that gives the keys for a scheme: "s3", "r2" or "weka". Keys from elsewhere
/// are not looked for then. Empty: they are again. The function is called at the first request from
/// now on and five minutes before the keys end, by one thread at a time; where it fails then, the
/// old keys are used up to their end. Its errors become those of requests, so they must hold no
/// secret. Threads: any. Errors: InvalidArgument for another scheme.
using S3KeysFunction = std::function<Result<S3Keys>()>;
Status SetS3Keys(std::string_view scheme, S3KeysFunction function);

}  // namespace varve
