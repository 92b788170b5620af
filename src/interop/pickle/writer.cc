// Opcodes and their arguments: Python's `pickletools` documentation.

#include "interop/pickle/writer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>
#include <utility>

namespace varve {
namespace {

constexpr std::uint64_t kMaxU32 = 0xFFFFFFFF;

// More than any state names; a list of made-up dtypes must not take quadratic time.
constexpr std::size_t kMaxKnownGlobals = 64;

/// Bytes that Python would not write: they only repeat the sign.
std::string_view WithoutRepeatedSign(std::string_view bytes) {
  while (bytes.size() > 1) {
    const bool negative = (bytes[bytes.size() - 2] & 0x80) != 0;
    if (bytes.back() != (negative ? '\xFF' : '\0')) {
      break;
    }
    bytes.remove_suffix(1);
  }
  return bytes;
}

}  // namespace

PickleWriter::PickleWriter(Bytes* out) : out_(out) {
  constexpr int kProto = 0x80;
  Op(kProto, 2, 1);
}

void PickleWriter::Op(int opcode, std::uint64_t argument, int argument_bytes) {
  std::array<char, 9> bytes{static_cast<char>(opcode)};
  for (std::size_t i = 1; i <= static_cast<std::size_t>(argument_bytes); ++i) {
    bytes[i] = static_cast<char>(argument);
    argument >>= 8;
  }
  out_->append(bytes.data(), static_cast<std::size_t>(argument_bytes) + 1);
}

void PickleWriter::Fail(std::string message) {
  if (status_.ok()) {
    status_ = InvalidArgument("pickle: " + std::move(message));
  }
}

void PickleWriter::Int(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value <= 0xFF) {
    Op('K', bits, 1);
  } else if (value >= 0 && value <= 0xFFFF) {
    Op('M', bits, 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    Op('J', bits, 4);
  } else {
    std::array<char, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(bits >> (8 * i));
    }
    const std::string_view shortest = WithoutRepeatedSign({bytes.data(), bytes.size()});
    Op(0x8a, shortest.size(), 1);  // LONG1
    out_->append(shortest);
  }
}

void PickleWriter::Int(std::string_view twos_complement) {
  const std::string_view bytes = WithoutRepeatedSign(twos_complement);
  if (bytes.size() <= sizeof(std::uint64_t)) {
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    std::uint64_t bits = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
      bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
    }
    Int(static_cast<std::int64_t>(bits));
    return;
  }
  constexpr std::uint64_t kMaxBytes = 0x7FFFFFFF;
  if (bytes.size() > kMaxBytes) {
    Fail("an int of " + std::to_string(bytes.size()) + " bytes");
    return;
  }
  if (bytes.size() <= 0xFF) {
    Op(0x8a, bytes.size(), 1);  // LONG1
  } else {
    Op(0x8b, bytes.size(), 4);  // LONG4
  }
  out_->append(bytes);
}

void PickleWriter::Float(double value) {
  auto bits = std::bit_cast<std::uint64_t>(value);
  std::array<char, 9> bytes{'G'};  // The one big-endian argument of all opcodes.
  for (std::size_t i = bytes.size(); i-- > 1;) {
    bytes[i] = static_cast<char>(bits);
    bits >>= 8;
  }
  out_->append(bytes.data(), bytes.size());
}

void PickleWriter::Str(std::string_view utf8) {
  if (utf8.size() > kMaxU32) {
    Fail("a str of " + std::to_string(utf8.size()) + " bytes; protocol 2 ends at 4 GiB");
    return;
  }
  Op('X', utf8.size(), 4);
  out_->append(utf8);
}

void PickleWriter::BytesObject(std::string_view bytes) {
  const auto is_ascii = [](char byte) { return (byte & 0x80) == 0; };
  const auto wide = bytes.size() -
                    static_cast<std::uint64_t>(std::count_if(bytes.begin(), bytes.end(), is_ascii));
  if (bytes.size() + wide > kMaxU32) {
    Fail("a bytes object of " + std::to_string(bytes.size()) +
         " bytes; protocol 2 ends at 4 GiB of UTF-8");
    return;
  }
  Global("_codecs", "encode");
  Op('X', bytes.size() + wide, 4);
  if (wide == 0) {
    out_->append(bytes);
  } else {
    const std::size_t begin = out_->size();
    out_->resize(begin + bytes.size() + wide);
    char* target = out_->data() + begin;
    for (const char byte : bytes) {
      if (is_ascii(byte)) {
        *target++ = byte;
      } else {
        const auto code = static_cast<unsigned char>(byte);
        *target++ = static_cast<char>(0xC0 | code >> 6);
        *target++ = static_cast<char>(0x80 | (code & 0x3F));
      }
    }
  }
  Str("latin1");
  Tuple2();
  Reduce();
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  // A line break would end the name, and what follows would be opcodes.
  if (module.find('\n') != std::string_view::npos || name.find('\n') != std::string_view::npos) {
    Fail("a line break in the name of a global");
    return;
  }
  const std::string_view written = *out_;
  for (const KnownGlobal& known : globals_) {
    if (written.substr(known.begin, known.module_bytes) == module &&
        written.substr(known.begin + known.module_bytes + 1, known.name_bytes) == name) {
      Recall(known.place);
      return;
    }
  }
  Op('c');
  const std::size_t begin = out_->size();
  out_->append(module).append(1, '\n').append(name).append(1, '\n');
  if (globals_.size() < kMaxKnownGlobals) {
    globals_.push_back({begin, module.size(), name.size(), Remember()});
  }
}

PickleWriter::Memo PickleWriter::Remember() {
  const bool small = next_memo_ <= 0xFF;
  Op(small ? 'q' : 'r', next_memo_, small ? 1 : 4);
  return next_memo_++;
}

void PickleWriter::Recall(Memo place) {
  const bool small = place <= 0xFF;
  Op(small ? 'h' : 'j', place, small ? 1 : 4);
}

Status PickleWriter::Finish() {
  Op('.');
  return status_;
}

}  // namespace varve
