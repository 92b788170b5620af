/// How much of a long test a build with sanitizers does.
#pragma once

#include <cstdint>

namespace varve::test {

#ifdef VARVE_TESTS_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// The step between two crash points, stops or faults that a test tries. Which code runs changes
/// less often than what is left: a build with sanitizers takes every fourth, the other every one.
inline constexpr std::uint64_t kEvery = kSanitized ? 4 : 1;

}  // namespace varve::test
