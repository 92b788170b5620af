#include "base/patience.h"

#include <algorithm>

namespace varve {
namespace {

thread_local ScopedPatience* current_patience = nullptr;

}  // namespace

ScopedPatience::ScopedPatience(std::chrono::milliseconds in_all)
    : left_(current_patience == nullptr ? in_all : std::min(in_all, current_patience->left())),
      before_(std::exchange(current_patience, this)) {}
ScopedPatience::~ScopedPatience() { current_patience = before_; }

void ScopedPatience::Spend(std::chrono::milliseconds time) {
  for (ScopedPatience* scope = this; scope != nullptr; scope = scope->before_) {
    scope->left_ -= time;
  }
}

ScopedPatience* CurrentPatience() { return current_patience; }

}  // namespace varve
