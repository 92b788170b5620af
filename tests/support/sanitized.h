/// How much of a long test a build with sanitizers does.
#pragma once

#include <cstddef>
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

/// The step between two bytes that a test damages. No power of two: of numbers of four and eight
/// bytes each byte is damaged in one or another.
inline constexpr std::size_t kEveryByte = kSanitized ? 3 : 1;

}  // namespace varve::test
