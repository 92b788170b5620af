/// A system that refuses memory or threads on request: `operator new` and pthread_create of the
/// test program, which fail at the N-th call and maybe at all later ones.
#pragma once

#include <cstdint>
#include <optional>

namespace varve::test {

enum class Resource : std::uint8_t { kMemory, kThread };

/// The calls that are refused.
struct Refusal {
  Resource resource = Resource::kMemory;
  std::uint64_t number = 0;  ///< The call that fails, from 0.
  bool forever = false;      ///< All later ones fail too.
  /// Only calls of this group's threads are counted and refused; empty: those of all threads.
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

  /// Returns true when the call with that number was made: there may be a later one to try.
  [[nodiscard]] static bool met();
};

/// Returns false where a sanitizer has its own `operator new` and pthread_create.
bool CanRefuse();

/// Counts the calling thread's calls, for group `group`, as long as this lives. Other threads'
/// never count.
class Subject {
 public:
  explicit Subject(int group);
  ~Subject();
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;
};

/// Takes the calling thread out of its group as long as this lives: the calls of a stand-in for
/// another program are neither counted nor refused.
class Elsewhere {
 public:
  Elsewhere();
  ~Elsewhere();
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

 private:
  const int group_;
};

}  // namespace varve::test
