#include "base/checksum.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <isa-l/crc.h>
#include <xxh_x86dispatch.h>
#include <zlib.h>

#include "base/ascii.h"

namespace varve {
namespace {

// Large enough to amortise the calls, small enough to stay in a 32-48 KiB L1 with the target.
constexpr std::size_t kCopyStepBytes = std::size_t{16} << 10;
// Summed, then streamed. Processors do not prefetch across pages, nor for the three places at once
// that a CRC reads; so each line that is streamed asks for one that lies behind the next step.
// Measured, GB/s by one and two threads, against a memcpy of the same: AMD EPYC (Zen 4) 12.5
// and 24.1 against 14.4 and 17.4, steps of 4 KiB without prefetches 8.3 and 16.0; Intel Xeon
// (Cascade Lake) steps of 4 KiB with them 4.0 and 7.9 against 4.7 and 8.7, without 2.8 and 4.9.
constexpr std::size_t kStreamStepBytes = std::size_t{2} << 10;
constexpr std::size_t kStreamAheadBytes = 2 * kStreamStepBytes;
constexpr std::size_t kLine = 64;
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

/// Copies whole cache lines to an aligned target, past the cache where the processor can, and has
/// what follows fetched.
void StreamLines(const std::byte* source, std::byte* target, std::size_t size) {
#ifdef __SSE2__
  for (std::size_t at = 0; at < size; at += kLine) {
    // It may lie behind the source: a prefetch never faults.
    _mm_prefetch(source + at + kStreamAheadBytes, _MM_HINT_T0);
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(target + at);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
#else
  std::memcpy(target, source, size);
#endif
}

/// Returns how many bytes lie before the first whole cache line.
std::size_t BeforeLine(const std::byte* target) {
  return (kLine - reinterpret_cast<std::uintptr_t>(target) % kLine) % kLine;
}

/// Makes the writes of StreamLines visible to threads that synchronise with this one later.
void FinishStreaming() {
#ifdef __SSE2__
  _mm_sfence();
#endif
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

// Polynomials over GF(2) of degree below 32: the highest bit is the coefficient of x^0.
constexpr std::uint32_t kCrc32cPolynomial = 0x82F63B78;
constexpr std::uint32_t kCrc32cX8 = 0x80000000U >> 8;

/// Returns a * b modulo the polynomial of CRC-32C.
std::uint32_t Crc32cTimes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) {
      product ^= b;
    }
    b = (b & 1) != 0 ? (b >> 1) ^ kCrc32cPolynomial : b >> 1;
  }
  return product;
}

int HexDigit(char c) {
  if (IsDigit(c)) {
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

// Appending n zero bytes to what a checksum is of multiplies it by x^(8n) modulo the polynomial;
// the inversions of both checksums cancel out.
std::uint32_t Crc32cJoin(std::uint32_t a, std::uint32_t b, std::uint64_t b_bytes) {
  if (Disabled()) {
    return 0;
  }
  std::uint32_t power = kCrc32cX8;  // x^8, x^16, x^32 and so on.
  for (std::uint64_t n = b_bytes; n > 0; n >>= 1) {
    if ((n & 1) != 0) {
      a = Crc32cTimes(a, power);
    }
    power = Crc32cTimes(power, power);
  }
  return a ^ b;
}

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
    // The checksum is taken from the copy: it then also covers the copying.
    state = CrcRaw(state, target + done, step);
    done += step;
  }
  return ~state;
}

void StreamCopy(std::span<const std::byte> source, std::byte* target) {
  if (source.empty()) {
    return;
  }
  const std::size_t to_line = std::min(BeforeLine(target), source.size());
  const std::size_t lines = (source.size() - to_line) / kLine * kLine;
  std::memcpy(target, source.data(), to_line);
  StreamLines(source.data() + to_line, target + to_line, lines);
  FinishStreaming();
  const std::span<const std::byte> rest = source.subspan(to_line + lines);
  std::memcpy(target + to_line + lines, rest.data(), rest.size());
}

std::uint32_t StreamAndCrc32c(std::uint32_t crc, std::span<const std::byte> source,
                              std::byte* target) {
  const std::size_t to_line = BeforeLine(target);
  if (Disabled() || source.size() < to_line + kStreamStepBytes) {
    return CopyAndCrc32c(crc, source, target);
  }
  crc = CopyAndCrc32c(crc, source.first(to_line), target);
  std::size_t done = to_line;
  const std::size_t lines_end = done + (source.size() - done) / kLine * kLine;
  std::uint32_t state = ~crc;
  while (done < lines_end) {
    const std::size_t step = std::min(kStreamStepBytes, lines_end - done);
    state = CrcRaw(state, source.data() + done, step);
    StreamLines(source.data() + done, target + done, step);
    done += step;
  }
  FinishStreaming();
  return CopyAndCrc32c(~state, source.subspan(done), target + done);
}

Hash128 Xxh3(std::span<const std::byte> data) {
  return Disabled() ? Hash128{} : Canonical(XXH3_128bits_dispatch(data.data(), data.size()));
}

std::uint64_t XxhOfName(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

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

void AppendHex(std::span<const std::uint8_t> bytes, std::string* out) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const std::size_t begin = out->size();
  out->resize(begin + 2 * bytes.size());
  char* at = out->data() + begin;
  for (const std::uint8_t byte : bytes) {
    *at++ = kDigits[byte >> 4];
    *at++ = kDigits[byte & 15];
  }
}

std::string Hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  AppendHex(bytes, &text);
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
