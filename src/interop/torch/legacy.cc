// The container before torch 1.6, which `_use_new_zipfile_serialization=False` still writes: five
// pickles one after the other (a magic number, a protocol version, facts of the machine, the
// object, the keys of its storages), then each storage as a count of elements and its bytes.

#include <algorithm>
#include <map>

#include "base/bytes.h"
#include "base/checked.h"
#include "interop/torch/parts.h"

namespace varve {
namespace {

// 0x1950a86a20f9469cfc6c, little-endian.
constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::int64_t kProtocolVersion = 1001;

constexpr std::uint64_t kFirstPickleBytes = 64 << 10;
constexpr std::uint64_t kSmallPickleBytes = 64 << 10;

using Pickle = std::unique_ptr<OwnedPickle>;

/// Reads the pickles of a file one after the other. Where one ends is only known once it has been
/// read, so each is tried with more and more bytes.
class PickleSequence {
 public:
  PickleSequence(std::uint64_t size, const RangeReader& read) : read_(read), size_(size) {}

  /// Reads the next pickle. Errors: those of ReadPickle; DataLoss when the pickle is longer than
  /// `max_bytes`.
  Result<Pickle> Next(std::uint64_t max_bytes) {
    const std::uint64_t left = std::min(size_ - position_, max_bytes);
    for (std::uint64_t bytes = std::min(left, kFirstPickleBytes);;
         bytes = std::min(left, bytes * 4)) {
      VARVE_ASSIGN_OR_RETURN(std::string content, read_(position_, bytes));
      std::uint64_t consumed = 0;
      auto pickle = ReadOwnedPickle(std::move(content), &consumed);
      if (pickle.ok()) {
        begin_ = position_;
        position_ += consumed;
        return pickle;
      }
      // Only a DataLoss may mean that the pickle goes on; other errors stay.
      if (pickle.status().code() != StatusCode::kDataLoss || bytes == left) {
        return pickle.status().Annotate("pickle at byte " + std::to_string(position_));
      }
    }
  }

  /// Returns the beginning of the last pickle.
  [[nodiscard]] std::uint64_t begin() const { return begin_; }
  /// Returns the end of the last pickle.
  [[nodiscard]] std::uint64_t position() const { return position_; }

 private:
  const RangeReader& read_;
  std::uint64_t size_;
  std::uint64_t begin_ = 0;
  std::uint64_t position_ = 0;
};

/// Checks the three pickles before the object.
Status CheckPreface(PickleSequence* pickles) {
  VARVE_RETURN_IF_ERROR(pickles->Next(kSmallPickleBytes).status());  // The magic number.
  VARVE_ASSIGN_OR_RETURN(const Pickle version, pickles->Next(kSmallPickleBytes));
  const PickleRef number = version->tree.root();
  if (version->tree.kind(number) != PickleKind::kInt ||
      version->tree.integer(number) != kProtocolVersion) {
    return Unimplemented("the protocol of this legacy file is not " +
                         std::to_string(kProtocolVersion));
  }
  VARVE_ASSIGN_OR_RETURN(const Pickle machine, pickles->Next(kSmallPickleBytes));
  const PickleRef little = machine->tree.Get(machine->tree.root(), "little_endian");
  if (little == kNoPickle || machine->tree.kind(little) != PickleKind::kBool) {
    return DataLoss("this legacy file does not tell its byte order");
  }
  if (machine->tree.integer(little) == 0) {
    return Unimplemented("it was written by a big-endian machine, which is not supported");
  }
  return Status::Ok();
}

/// Returns the bytes of an element of each storage, from the object's references to it.
Result<std::map<std::string_view, std::uint64_t>> ItemBytesByKey(const PickleTree& tree) {
  std::map<std::string_view, std::uint64_t> by_key;
  for (const PickleRef node : ReachableNodes(tree, tree.root(), ~std::uint64_t{0})) {
    if (const auto reference = StorageReferenceAt(tree, node)) {
      const std::uint64_t item_bytes = reference->type.item_bytes;
      if (by_key.emplace(reference->key, item_bytes).first->second != item_bytes) {
        return DataLoss("storage \"" + std::string(reference->key) + "\" is of two types");
      }
    }
  }
  return by_key;
}

}  // namespace

bool BeginsLegacyContainer(std::string_view head) {
  const auto magic = ReadPickle(head);
  return magic.ok() && magic->kind(magic->root()) == PickleKind::kLong &&
         magic->text(magic->root()) == kMagic;
}

Result<TorchContainer> ReadLegacyContainer(std::uint64_t size, const RangeReader& read) {
  PickleSequence pickles(size, read);
  VARVE_RETURN_IF_ERROR(CheckPreface(&pickles));
  TorchContainer container;
  VARVE_ASSIGN_OR_RETURN(container.pickle, pickles.Next(kMaxTorchPickleBytes));
  container.pickle_record = {.key = {},
                             .begin = pickles.begin(),
                             .bytes = pickles.position() - pickles.begin(),
                             .crc32 = {}};
  VARVE_ASSIGN_OR_RETURN(const auto item_bytes, ItemBytesByKey(container.pickle->tree));

  VARVE_ASSIGN_OR_RETURN(const Pickle keys, pickles.Next(kMaxTorchPickleBytes));
  std::uint64_t position = pickles.position();
  for (const PickleRef node : keys->tree.items(keys->tree.root())) {
    const std::string key(keys->tree.text(node));
    const auto found = item_bytes.find(key);
    if (found == item_bytes.end()) {
      return DataLoss("nothing refers to the storage \"" + key + "\"");
    }
    constexpr std::uint64_t kCountBytes = 8;
    if (size - position < kCountBytes) {
      return DataLoss("the file ends before the storage \"" + key + "\"");
    }
    VARVE_ASSIGN_OR_RETURN(const std::string count, read(position, kCountBytes));
    position += kCountBytes;
    const auto bytes = CheckedMul(ByteReader(count).U64(), found->second);
    if (!bytes || *bytes > size - position) {
      return DataLoss("the file ends within the storage \"" + key + "\"");
    }
    container.storages.push_back({.key = key, .begin = position, .bytes = *bytes, .crc32 = {}});
    position += *bytes;
  }
  return container;
}

}  // namespace varve
