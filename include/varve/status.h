/// Errors as values: Status describes an error, Result<T> is a T or a Status.
///
/// Nothing in Varve's C++ API throws (out-of-memory aside). Each layer prepends one phrase with
/// Status::Annotate, so a message reads outside-in:
///   load "run/step-1200": tensor "layers.3.w": data-00004-of-00008.safetensors [4096, 69632): ...
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace varve {

/// The kind of an error, by what the caller can do about it. Values cross process boundaries
/// between ranks of one job (never disk); do not renumber.
enum class StatusCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument = 1,     ///< The call is wrong; fix the argument named in the message.
  kNotFound = 2,            ///< No such file, checkpoint or tensor.
  kAlreadyExists = 3,       ///< The name is taken; choose another or ask to overwrite.
  kDataLoss = 4,            ///< Stored bytes are damaged or missing.
  kOutOfSpace = 5,          ///< The storage is full; free space and retry.
  kUnavailable = 6,         ///< I/O failed or a rank is missing; a retry may help.
  kUnimplemented = 7,       ///< Not supported, or written by a newer version.
  kCancelled = 8,           ///< Stopped on request.
  kFailedPrecondition = 9,  ///< Refused in the present state, e.g. another save is under way.
  kInternal = 10,           ///< A bug in Varve; please report it.
};

/// Returns the code's name in the form "DataLoss".
std::string_view StatusCodeName(StatusCode code);

/// Finer than the code, where a program has to tell errors of one code apart.
enum class ErrorReason : std::uint8_t {
  kNone = 0,
  kStagerLost = 1,  ///< The stager lost a message of other ranks: a new stager can save.
  kIncomplete = 2,  ///< The checkpoint is not whole: files of it are not there, or not yet.
  /// The server gave no answer to the last write, so the save may be visible. A repetition under
  /// the same id would write into its files.
  kMayBeVisible = 3,
};

/// The failure of one rank, in an error that several ranks share.
struct RankFailure {
  int rank = 0;
  StatusCode code = StatusCode::kInternal;
  std::string message;   ///< Names neither the rank nor the call.
  std::string path;      ///< As in ErrorDetails.
  int system_error = 0;  ///< As in ErrorDetails.
  friend bool operator==(const RankFailure&, const RankFailure&) = default;
};

/// Facts of an error for programs. The message has them in words.
struct ErrorDetails {
  std::string path;      ///< The file or checkpoint that the error is about. Empty: not known.
  int rank = -1;         ///< The lowest rank that failed. -1: not known.
  int system_error = 0;  ///< errno of the system call that failed. 0: none did.
  ErrorReason reason = ErrorReason::kNone;
  /// The ranks that failed, in the order of their numbers, the first 64 of them. Empty for an error
  /// that ranks did not exchange.
  std::vector<RankFailure> failures;
  /// Of a load: which of this rank's targets hold new bytes, in words.
  std::string destination{};
  friend bool operator==(const ErrorDetails&, const ErrorDetails&) = default;
};

/// An error code with a message, or success. Cheap to move; success allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  [[nodiscard]] const ErrorDetails& details() const { return details_; }

  /// Returns the same error with those of `details` that it does not have yet. Success stays
  /// success.
  [[nodiscard]] Status With(ErrorDetails details) const&;
  [[nodiscard]] Status With(ErrorDetails details) &&;

  /// Returns the same error with `context` and ": " put before its message. Success stays success.
  [[nodiscard]] Status Annotate(std::string_view context) const;

  /// Returns "DataLoss: message", or "Ok".
  [[nodiscard]] std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  ErrorDetails details_;
};

Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status DataLoss(std::string message);
Status Unavailable(std::string message);
Status Unimplemented(std::string message);
Status FailedPrecondition(std::string message);
Status Internal(std::string message);

/// A value, or the Status that explains why there is none. Dereferencing an error asserts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok() && "a Result built from a Status must carry an error");
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }

  [[nodiscard]] T& value() & {
    assert(ok());
    return *value_;
  }
  [[nodiscard]] const T& value() const& {
    assert(ok());
    return *value_;
  }
  [[nodiscard]] T&& value() && {
    assert(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// Returns this result with details added to its error (Status::With); a value passes through.
  [[nodiscard]] Result With(ErrorDetails details) && {
    status_ = std::move(status_).With(std::move(details));
    return std::move(*this);
  }

  /// Returns this result with its error annotated (Status::Annotate); a value passes through.
  [[nodiscard]] Result Annotate(std::string_view context) && {
    if (ok()) {
      return std::move(*this);
    }
    return Result(status_.Annotate(context));
  }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace varve

/// Returns from the enclosing function when `expression` (a Status) is an error.
#define VARVE_RETURN_IF_ERROR(expression)                                    \
  do {                                                                       \
    if (::varve::Status varve_status_ = (expression); !varve_status_.ok()) { \
      return varve_status_;                                                  \
    }                                                                        \
  } while (false)

#define VARVE_CONCAT_INNER_(a, b) a##b
#define VARVE_CONCAT_(a, b) VARVE_CONCAT_INNER_(a, b)

/// Declares or assigns `target` from a Result, or returns its Status.
#define VARVE_ASSIGN_OR_RETURN(target, expression) \
  VARVE_ASSIGN_OR_RETURN_IMPL_(VARVE_CONCAT_(varve_result_, __LINE__), target, expression)
#define VARVE_ASSIGN_OR_RETURN_IMPL_(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) {                                            \
    return result.status();                                      \
  }                                                              \
  target = std::move(result).value()
