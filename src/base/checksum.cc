#include "base/checksum.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <isa-l/crc.h>
#include <xxh_x86dispatch.h>
#include <zlib.h>

namespace varve {
namespace {

// Large enough to amortise the calls, small enough to stay in a 32-48 KiB L1 with the target.
constexpr std::size_t kCopyStepBytes = std::size_t{16} << 10;
// ISA-L takes the length as int.
constexpr std::size_t kCrcStepBytes = std::size_t{1} << 30;

std::uint32_t CrcRaw(std::uint32_t state, const std::byte* data, std::size_t size) {
  while (size > 0) {
    const std::size_t step = std::min(size, kCrcStepBytes);
    // ISA-L's prototype is not const-correct; it only reads.
    auto* bytes = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data));
    state = crc32_iscsi(bytes, static_cast<int>(step), state);
    data += step;
    size -= step;
  }
  return state;
}

#ifdef VARVE_BENCH_KNOBS
// Only in builds made to measure what checksums cost (bench/README.md): with the variable set every
// checksum and hash is zero, when saving and when loading.
bool Disabled() {
  static const bool disabled = std::getenv("VARVE_BENCH_DISABLE_CHECKSUMS") != nullptr;
  return disabled;
}
#else
constexpr bool Disabled() { return false; }
#endif

Hash128 Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Hash128 out;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), out.bytes.begin());
  return out;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  return -1;
}

}  // namespace

// ISA-L's crc32_iscsi neither inverts its input nor its output, so the RFC's inversions are here.
std::uint32_t Crc32cExtend(std::uint32_t crc, std::span<const std::byte> data) {
  return Disabled() ? 0 : ~CrcRaw(~crc, data.data(), data.size());
}

std::uint32_t Crc32c(std::span<const std::byte> data) { return Crc32cExtend(0, data); }

// ISA-L's crc32_gzip_refl does both inversions itself.
std::uint32_t Crc32ZipExtend(std::uint32_t crc, std::span<const std::byte> data) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  return crc32_gzip_refl(crc, bytes, data.size());
}

std::uint32_t Crc32ZipJoin(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes) {
  return static_cast<std::uint32_t>(crc32_combine(a, b, static_cast<z_off_t>(b_bytes)));
}

std::uint32_t CopyAndCrc32c(std::uint32_t crc, std::span<const std::byte> source,
                            std::byte* target) {
  if (Disabled()) {
    std::memcpy(target, source.data(), source.size());
    return 0;
  }
  std::uint32_t state = ~crc;
  for (std::size_t done = 0; done < source.size();) {
    const std::size_t step = std::min(kCopyStepBytes, source.size() - done);
    std::memcpy(target + done, source.data() + done, step);
    // The checksum is taken from the copy: it then also covers what the copy did.
    state = CrcRaw(state, target + done, step);
    done += step;
  }
  return ~state;
}

Hash128 Xxh3(std::span<const std::byte> data) {
  return Disabled() ? Hash128{} : Canonical(XXH3_128bits_dispatch(data.data(), data.size()));
}

struct Xxh3Stream::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { Reset(); }
Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::Reset() { XXH3_128bits_reset(state_->xxh); }

void Xxh3Stream::Update(std::span<const std::byte> data) {
  // Debian's library picks SSE2 for the plain call; the dispatching one uses AVX2/AVX-512.
  if (!Disabled()) {
    XXH3_128bits_update_dispatch(state_->xxh, data.data(), data.size());
  }
}

Hash128 Xxh3Stream::Digest() const { return Canonical(XXH3_128bits_digest(state_->xxh)); }

std::string Hex(std::span<const std::uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

std::string HexU32(std::uint32_t value) {
  const std::array<std::uint8_t, 4> bytes{
      static_cast<std::uint8_t>(value >> 24), static_cast<std::uint8_t>(value >> 16),
      static_cast<std::uint8_t>(value >> 8), static_cast<std::uint8_t>(value)};
  return Hex(bytes);
}

bool ParseHex(std::string_view text, std::span<std::uint8_t> out) {
  if (text.size() != out.size() * 2) {
    return false;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int high = HexDigit(text[2 * i]);
    const int low = HexDigit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return false;
    }
    out[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

bool ParseHexU32(std::string_view text, std::uint32_t* out) {
  std::array<std::uint8_t, 4> bytes{};
  if (!ParseHex(text, bytes)) {
    return false;
  }
  *out = 0;
  for (const std::uint8_t byte : bytes) {
    *out = (*out << 8) | byte;
  }
  return true;
}

}  // namespace varve
