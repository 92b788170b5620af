/// Writes pickles opcode by opcode: protocol 2, which every Python 3 and torch's restricted
/// unpickler read. The reading side is interop/pickle/tree.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "varve/status.h"

namespace varve {

/// Each member pushes an object onto the unpickler's stack, or replaces what lies on top of it, as
/// its comment says. A value that cannot be written makes Finish fail; nothing need be checked
/// before. Keeping the stack right is the caller's part: a MARK for each Tuple(), Appends() and
/// SetItems().
class PickleWriter {
 public:
  /// A place in the unpickler's memo.
  using Memo = std::uint32_t;

  /// Appends to `*out`, which must outlive this and is otherwise left alone until Finish.
  explicit PickleWriter(Bytes* out);

  // ---- plain objects ----

  void None() { Op('N'); }
  void Bool(bool value) { Op(value ? '\x88' : '\x89'); }
  void Int(std::int64_t value);
  /// Pushes an int of any size: two's complement, little-endian, as in a Value of kInt. At most
  /// 2^31 - 1 bytes.
  void Int(std::string_view twos_complement);
  void Float(double value);
  /// Pushes a str of less than 4 GiB of UTF-8; lone surrogates may stand as three bytes each.
  void Str(std::string_view utf8);
  /// Pushes a bytes object. Protocol 2 has none: it is the call that Python itself writes,
  /// _codecs.encode(text, "latin1"), in which the text may be of less than 4 GiB.
  void BytesObject(std::string_view bytes);

  // ---- classes and functions, and what they make ----

  /// Pushes the importable `module.name`, by its Python 2 name where it had one (Python's own
  /// _compat_pickle): `__builtin__`, `unicode`. The first 64 are written out once and recalled from
  /// then on. Neither may hold a line break.
  void Global(std::string_view module, std::string_view name);
  void Reduce() { Op('R'); }        ///< callee, argument tuple -> what the call gives.
  void NewObject() { Op(0x81); }    ///< class, argument tuple -> an instance, not initialised.
  void Build() { Op('b'); }         ///< object, state -> the object.
  void PersistentId() { Op('Q'); }  ///< id -> what the unpickler's persistent_load gives for it.

  // ---- containers ----

  void Mark() { Op('('); }
  void Tuple() { Op('t'); }   ///< MARK, items -> a tuple.
  void Tuple0() { Op(')'); }  ///< -> ().
  void Tuple1() { Op(0x85); }
  void Tuple2() { Op(0x86); }
  void Tuple3() { Op(0x87); }
  void List() { Op(']'); }      ///< -> [].
  void Appends() { Op('e'); }   ///< list, MARK, items -> the list.
  void Dict() { Op('}'); }      ///< -> {}.
  void SetItems() { Op('u'); }  ///< mapping, MARK, keys and values in turn -> the mapping.

  // ---- the memo ----

  Memo Remember();          ///< Of what lies on top; it stays there.
  void Recall(Memo place);  ///< -> the remembered object, the same one.

  /// Pushes what a call of `module.name` with one argument gives, the same object each time;
  /// `place` remembers it. `push_argument` pushes the argument.
  template <class PushArgument>
  void Constant(std::optional<Memo>* place, std::string_view module, std::string_view name,
                const PushArgument& push_argument) {
    if (*place) {
      Recall(**place);
      return;
    }
    Global(module, name);
    push_argument();
    Tuple1();
    Reduce();
    *place = Remember();
  }

  /// Writes the end. Errors: InvalidArgument for the first thing that could not be written.
  [[nodiscard]] Status Finish();

 private:
  struct KnownGlobal {
    std::size_t begin = 0;  // Of "module\nname\n" in *out_.
    std::size_t module_bytes = 0;
    std::size_t name_bytes = 0;
    Memo place = 0;
  };

  void Op(int opcode) { out_->push_back(static_cast<char>(opcode)); }
  void Op(int opcode, std::uint64_t argument, int argument_bytes);
  void Fail(std::string message);

  Bytes* out_;
  Memo next_memo_ = 0;
  std::vector<KnownGlobal> globals_;  // Searched one after the other.
  Status status_;
};

}  // namespace varve
