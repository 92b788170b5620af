/// A fuzz target: a function that is given any bytes and must neither crash nor break a claim. The
/// same source is built twice: with VARVE_FUZZER as an executable that libFuzzer drives, without it
/// into the tests, which replay tests/fuzz_corpus (replay_test.cc there).
///
///     VARVE_FUZZ_TARGET(value) {
///       if (const auto decoded = DecodeValue(input); decoded.ok()) {
///         VARVE_FUZZ_CHECK(...);
///       }
///     }
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

namespace varve::fuzz {

using Target = void (*)(std::string_view input);

/// Returns all targets of this binary by name.
inline std::map<std::string, Target>& Targets() {
  static std::map<std::string, Target> targets;
  return targets;
}

[[noreturn]] inline void Broken(const char* claim, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, claim);
  std::abort();
}

}  // namespace varve::fuzz

/// Ends the process when a claim about the decoder does not hold. Works without assertions too.
#define VARVE_FUZZ_CHECK(claim)                          \
  do {                                                   \
    if (!(claim)) {                                      \
      ::varve::fuzz::Broken(#claim, __FILE__, __LINE__); \
    }                                                    \
  } while (false)

/// Begins the definition of a target, in the file NAME_fuzzer.cc and in a namespace of its own. The
/// body sees the bytes as `std::string_view input`.
#ifdef VARVE_FUZZER
#define VARVE_FUZZ_TARGET(name)                                                       \
  static void FuzzTarget_##name(std::string_view input);                              \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
    FuzzTarget_##name({reinterpret_cast<const char*>(data), size});                   \
    return 0;                                                                         \
  }                                                                                   \
  static void FuzzTarget_##name(std::string_view input)
#else
#define VARVE_FUZZ_TARGET(name)                                           \
  static void FuzzTarget_##name(std::string_view input);                  \
  [[maybe_unused]] static const bool added_##name =                       \
      ::varve::fuzz::Targets().emplace(#name, &FuzzTarget_##name).second; \
  static void FuzzTarget_##name(std::string_view input)
#endif
