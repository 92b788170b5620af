#include "varve/stop.h"

#include <utility>

namespace varve {
namespace {

thread_local std::stop_token current_stop;

}  // namespace

std::stop_token CurrentStop() { return current_stop; }

ScopedStop::ScopedStop(std::stop_token stop)
    : before_(std::exchange(current_stop, std::move(stop))) {}
ScopedStop::~ScopedStop() { current_stop = std::move(before_); }

}  // namespace varve
