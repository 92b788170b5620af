/// The call of a hook that a user has written.
#pragma once

#include <exception>
#include <string>

#include "varve/status.h"

namespace varve::protocol {

/// Calls a hook and returns its answer; an error says which hook it comes from. An exception is an
/// error too: it must not keep the rank from its next exchange, where the others wait.
template <class Call>
auto CallHook(const std::string& name, const Call& call) -> decltype(call()) {
  const auto threw = [&](const std::string& what) {
    return Internal("threw an exception: " + what).Annotate(name);
  };
  try {
    return call().Annotate(name);
  } catch (const std::exception& error) {
    return threw(error.what());
  } catch (...) {
    return threw("of an unknown type");
  }
}

}  // namespace varve::protocol
