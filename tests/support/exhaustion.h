/// A system that refuses memory or threads, on order: `operator new` and pthread_create of the test
/// program, which fail at the N-th call and maybe at all later ones.
#pragma once

#include <cstdint>
#include <optional>

namespace varve::test {

enum class Resource : std::uint8_t { kMemory, kThread };

/// What is refused.
struct Refusal {
  Resource resource = Resource::kMemory;
  std::uint64_t number = 0;  ///< The call that fails, from 0.
  bool forever = false;      ///< All later ones fail too.
  /// Counted and refused are only calls of this group's threads; empty: of all.
  std::optional<int> group{};
};

/// Refuses as long as it lives; one at a time. Threads that are started belong to the group of the
/// thread that started them.
class Exhaustion {
 public:
  explicit Exhaustion(const Refusal& refusal);
  ~Exhaustion();
  Exhaustion(const Exhaustion&) = delete;
  Exhaustion& operator=(const Exhaustion&) = delete;

  /// True when the call with that number was made: there may be a later one to try.
  [[nodiscard]] static bool met();
};

/// False where a sanitizer has its own `operator new` and pthread_create.
bool CanRefuse();

/// The calling thread's calls count, for group `group`, as long as this lives. Others' never do.
class Subject {
 public:
  explicit Subject(int group);
  ~Subject();
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
};

}  // namespace varve::test
