#include "support/exhaustion.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <utility>

#include <dlfcn.h>
#include <pthread.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VARVE_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define VARVE_TEST_SANITIZED
#endif
#endif

namespace varve::test {
namespace {

constexpr int kNoGroup = -1;

thread_local int group = kNoGroup;
std::atomic<bool> armed{false};
std::atomic<std::uint64_t> calls{0};
Refusal refusal;  // Written before `armed` is.

/// Counts a call; true when it is to fail.
[[maybe_unused]] bool Refuses(Resource resource) {
  if (group == kNoGroup || !armed || refusal.resource != resource ||
      (refusal.group && *refusal.group != group)) {
    return false;
  }
  const std::uint64_t number = calls++;
  return number == refusal.number || (refusal.forever && number > refusal.number);
}

}  // namespace

Exhaustion::Exhaustion(const Refusal& order) {
  refusal = order;
  calls = 0;
  armed = true;
}

Exhaustion::~Exhaustion() { armed = false; }

bool Exhaustion::met() { return calls > refusal.number; }

Subject::Subject(int of_group) { group = of_group; }
Subject::~Subject() { group = kNoGroup; }

Elsewhere::Elsewhere() : group_(std::exchange(group, kNoGroup)) {}
Elsewhere::~Elsewhere() { group = group_; }

#ifdef VARVE_TEST_SANITIZED

bool CanRefuse() { return false; }

#else

bool CanRefuse() { return true; }

namespace {

struct Start {
  void* (*routine)(void*);
  void* argument;
  int group;
};

void* InGroup(void* start) {
  const Start given = *static_cast<Start*>(start);
  std::free(start);
  group = given.group;
  return given.routine(given.argument);
}

void* Allocate(std::size_t size, std::size_t alignment) noexcept {
  if (Refuses(Resource::kMemory)) {
    return nullptr;
  }
  const std::size_t bytes = size == 0 ? 1 : size;
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(bytes)
             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(std::size_t size, std::size_t alignment) {
  void* const memory = Allocate(size, alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

#endif

}  // namespace varve::test

#ifndef VARVE_TEST_SANITIZED

// The standard library's own calls come here as well.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*), void* argument) {
  using varve::test::Start;
  using Function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (varve::test::Refuses(varve::test::Resource::kThread)) {
    return EAGAIN;
  }
  auto* const start = static_cast<Start*>(std::malloc(sizeof(Start)));
  *start = {routine, argument, varve::test::group};
  return real(thread, attributes, varve::test::InGroup, start);
}

// NOLINTBEGIN(misc-new-delete-overloads): all forms are here, and the arrays' forms call these
void* operator new(std::size_t size) {
  return varve::test::AllocateOrThrow(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return varve::test::AllocateOrThrow(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  return varve::test::Allocate(size, alignof(std::max_align_t));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
// NOLINTEND(misc-new-delete-overloads)

#endif
