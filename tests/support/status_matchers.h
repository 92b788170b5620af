/// Assertions about Status and Result that print the whole error when they fail.
#pragma once

#include <initializer_list>
#include <string_view>

#include <gtest/gtest.h>

#include "varve/status.h"

namespace varve::test {

inline const Status& StatusOf(const Status& status) { return status; }
template <class T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}

template <class T>
testing::AssertionResult IsOk(const T& result) {
  if (StatusOf(result).ok()) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "expected Ok, got " << StatusOf(result).ToString();
}

/// Checks that the error has this code, and that its message holds each of `phrases`.
template <class T>
testing::AssertionResult FailsWith(const T& result, StatusCode code,
                                   std::initializer_list<std::string_view> phrases = {}) {
  const Status& status = StatusOf(result);
  if (status.code() != code) {
    return testing::AssertionFailure()
           << "expected " << StatusCodeName(code) << ", got " << status.ToString();
  }
  for (const std::string_view phrase : phrases) {
    if (status.message().find(phrase) == std::string::npos) {
      return testing::AssertionFailure()
             << "\"" << phrase << "\" is not in the message: " << status.ToString();
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace varve::test
