/// An inert pickle machine: it turns a pickle into a tree and never calls, imports or builds
/// anything. Calls that Python would make when it opens the pickle (GLOBAL, REDUCE, BUILD, ...)
/// become nodes that say so; the decoders above know the few they understand and take the rest as
/// opaque.
///
/// Protocols 0 to 5, without out-of-band buffers and without the extension registry: both refer to
/// something outside the pickle. Opcodes and their meaning: Python's `pickletools` documentation.
#pragma once

#include <bit>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "interop/pickle/pod_list.h"
#include "varve/status.h"

namespace varve {

/// A node's number in its tree.
using PickleRef = std::uint32_t;
inline constexpr PickleRef kNoPickle = 0xFFFFFFFF;

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,        ///< integer: 0 or 1.
  kInt,         ///< integer; every int that fits, however it was written.
  kLong,        ///< text: two's complement, little-endian; an int that needs more than 64 bits.
  kFloat,       ///< real.
  kStr,         ///< text: UTF-8 (lone surrogates as three bytes each), checked.
  kBytes,       ///< text; also a Python 2 str that is not UTF-8.
  kByteArray,   ///< text.
  kTuple,       ///< items.
  kList,        ///< items.
  kDict,        ///< items: key, value, key, value, ... as written: a key may come twice.
  kSet,         ///< items.
  kFrozenSet,   ///< items.
  kGlobal,      ///< module, name: something that Python would import.
  kReduce,      ///< object: what `callee(*args)` would give.
  kNewObject,   ///< object: what `callee.__new__(callee, *args)` would give.
  kPersistent,  ///< object: args is the id given to the unpickler's persistent_load.
  kFolded,      ///< tag, integer: what a PickleFolder made of an object.
};

/// The parts of a kReduce, kNewObject or kPersistent node.
struct PickleObject {
  PickleRef callee = kNoPickle;
  PickleRef args = kNoPickle;    ///< A tuple (kPersistent: any node).
  PickleRef kwargs = kNoPickle;  ///< A dict; NEWOBJ_EX only.
  PickleRef state = kNoPickle;   ///< BUILD's argument; of several, the last.
  std::vector<PickleRef> items;  ///< APPENDed, ADDed.
  std::vector<PickleRef> pairs;  ///< SETITEMed: key, value, key, value, ...
};

struct PickleLimits {
  std::uint64_t max_nodes = std::uint64_t{1} << 28;  ///< Alive at once; 16 bytes each.
  std::uint32_t max_depth = 1000;                    ///< Of MARKs.
};

class PickleFolder;

/// The tree of one pickle. Text is a view into the input, which must outlive the tree. Immutable
/// once made, movable; safe to read from several threads. A tree may share nodes and may even hold
/// itself (a list appended to itself): who walks it bounds the depth.
///
/// Accessors ask for a node of this tree, never kNoPickle. Of a node that has no such thing, text,
/// module, name and items are empty.
class PickleTree {
 public:
  [[nodiscard]] PickleRef root() const { return root_; }
  [[nodiscard]] PickleKind kind(PickleRef node) const { return nodes_[node].kind; }
  [[nodiscard]] std::int64_t integer(PickleRef node) const {
    return static_cast<std::int64_t>(nodes_[node].payload);
  }
  [[nodiscard]] double real(PickleRef node) const;
  [[nodiscard]] std::string_view text(PickleRef node) const;
  [[nodiscard]] std::string_view module(PickleRef node) const;
  [[nodiscard]] std::string_view name(PickleRef node) const;
  /// Returns the items of a tuple, list, dict or set.
  [[nodiscard]] std::span<const PickleRef> items(PickleRef node) const;
  [[nodiscard]] bool IsObject(PickleRef node) const;
  /// Requires IsObject(node).
  [[nodiscard]] const PickleObject& object(PickleRef node) const {
    return objects_[nodes_[node].extra];
  }
  /// Returns the tag of a folded node, or of a global a small number that equal globals share.
  [[nodiscard]] std::uint32_t tag(PickleRef node) const { return nodes_[node].extra; }

  /// Returns true for the global `module.name`.
  [[nodiscard]] bool IsGlobal(PickleRef node, std::string_view module, std::string_view name) const;
  /// Returns true for an object made by calling (or instantiating) the global `module.name`.
  [[nodiscard]] bool IsMadeBy(PickleRef node, std::string_view module, std::string_view name) const;
  /// Returns the value of a str key in a dict node, or kNoPickle; the last one where a key repeats,
  /// as in Python. Looks at one key after the other: meant for the small dicts that attributes are.
  [[nodiscard]] PickleRef Get(PickleRef dict, std::string_view key) const;

 private:
  friend class PickleMachine;

  // The meaning of the other fields depends on the kind:
  //   text      payload: begin in input_, or place in texts_ when `in_texts`; extra: length of the
  //   former items     payload: begin in items_; extra: count object    extra: place in objects_
  //   kGlobal   extra: place in globals_
  //   numbers   payload: the bits
  struct Node {
    PickleKind kind;
    bool in_texts;
    std::uint32_t extra;
    std::uint64_t payload;
  };
  struct Global {
    std::string_view module;
    std::string_view name;
    friend bool operator==(const Global&, const Global&) = default;
  };

  std::string_view input_;
  PickleRef root_ = kNoPickle;
  PodList<Node> nodes_;
  PodList<PickleRef> items_;
  std::vector<PickleObject> objects_;
  std::vector<Global> globals_;
  std::vector<std::string_view> texts_;  // Text that the input does not hold as such, or too long.
  std::deque<std::string> owned_;        // What texts_ and globals_ view outside the input.
};

inline double PickleTree::real(PickleRef node) const {
  return std::bit_cast<double>(nodes_[node].payload);
}

inline std::string_view PickleTree::text(PickleRef node) const {
  const Node& at = nodes_[node];
  if (at.kind != PickleKind::kStr && at.kind != PickleKind::kBytes &&
      at.kind != PickleKind::kByteArray && at.kind != PickleKind::kLong) {
    return {};
  }
  return at.in_texts ? texts_[at.payload] : std::string_view(input_.data() + at.payload, at.extra);
}

inline std::string_view PickleTree::module(PickleRef node) const {
  const Node& at = nodes_[node];
  return at.kind == PickleKind::kGlobal ? globals_[at.extra].module : std::string_view();
}

inline std::string_view PickleTree::name(PickleRef node) const {
  const Node& at = nodes_[node];
  return at.kind == PickleKind::kGlobal ? globals_[at.extra].name : std::string_view();
}

inline std::span<const PickleRef> PickleTree::items(PickleRef node) const {
  const Node& at = nodes_[node];
  if (at.kind < PickleKind::kTuple || at.kind > PickleKind::kFrozenSet || at.extra == 0) {
    return {};
  }
  return {items_.data() + at.payload, at.extra};
}

inline bool PickleTree::IsObject(PickleRef node) const {
  const PickleKind kind = nodes_[node].kind;
  return kind == PickleKind::kReduce || kind == PickleKind::kNewObject ||
         kind == PickleKind::kPersistent;
}

/// Lets a decoder of very large pickles replace objects by something smaller while the machine
/// runs. When an object is folded, the nodes that were made for it are dropped: all since its
/// first, except numbers, text, globals and folded objects that the memo still names, which the
/// pickle may use again. A pickle that later uses one of the others (a shared dict, say) cannot be
/// read with folding; ReadPickle then fails with FailedPrecondition, and the caller reads again
/// without.
class PickleFolder {
 public:
  virtual ~PickleFolder() = default;

  /// Folds an object or refuses. `object` has just been made (REDUCE, NEWOBJ, ...: its state is not
  /// known yet) or been given its state (BUILD). Returns true and sets *tag and *value to put a
  /// kFolded node in its place: nothing can then be added to it. After false it may be offered once
  /// more, with its state. The tree may be read, not kept; views of its text that lie in the input
  /// stay valid as long as it.
  virtual bool Fold(const PickleTree& tree, PickleRef object, std::uint32_t* tag,
                    std::int64_t* value) = 0;
};

/// Reads one pickle; `*consumed`, if given, is set to the bytes up to and with its STOP, and bytes
/// behind it are left alone. Memory is bounded by a multiple of the input's size, whatever it says.
/// Errors: DataLoss for anything malformed, with the byte offset and the opcode; Unimplemented for
/// a newer protocol and for what refers outside the pickle; InvalidArgument when a limit is met;
/// FailedPrecondition when it cannot be read with folding, see PickleFolder.
Result<PickleTree> ReadPickle(std::string_view input, const PickleLimits& limits = {},
                              PickleFolder* folder = nullptr, std::uint64_t* consumed = nullptr);

}  // namespace varve
