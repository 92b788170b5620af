#include "varve/status.h"

namespace varve {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "Ok";
    case StatusCode::kInvalidArgument: return "InvalidArgument";
    case StatusCode::kNotFound: return "NotFound";
    case StatusCode::kAlreadyExists: return "AlreadyExists";
    case StatusCode::kDataLoss: return "DataLoss";
    case StatusCode::kOutOfSpace: return "OutOfSpace";
    case StatusCode::kUnavailable: return "Unavailable";
    case StatusCode::kUnimplemented: return "Unimplemented";
    case StatusCode::kCancelled: return "Cancelled";
    case StatusCode::kFailedPrecondition: return "FailedPrecondition";
    case StatusCode::kInternal: return "Internal";
  }
  return "Unknown";
}

Status Status::Annotate(std::string_view context) const {
  if (ok()) {
    return *this;
  }
  std::string message(context);
  message += ": ";
  message += message_;
  Status annotated(code_, std::move(message));
  annotated.details_ = details_;
  return annotated;
}

Status Status::With(ErrorDetails details) const& { return Status(*this).With(std::move(details)); }

Status Status::With(ErrorDetails details) && {
  if (ok()) {
    return {};
  }
  if (details_.path.empty()) {
    details_.path = std::move(details.path);
  }
  if (details_.rank < 0) {
    details_.rank = details.rank;
  }
  if (details_.system_error == 0) {
    details_.system_error = details.system_error;
  }
  if (details_.reason == ErrorReason::kNone) {
    details_.reason = details.reason;
  }
  if (details_.failures.empty()) {
    details_.failures = std::move(details.failures);
  }
  if (details_.destination.empty()) {
    details_.destination = std::move(details.destination);
  }
  return std::move(*this);
}

std::string Status::ToString() const {
  if (ok()) {
    return "Ok";
  }
  std::string text(StatusCodeName(code_));
  text += ": ";
  text += message_;
  return text;
}

Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
Status AlreadyExists(std::string message) {
  return {StatusCode::kAlreadyExists, std::move(message)};
}
Status DataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }
Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status Unimplemented(std::string message) {
  return {StatusCode::kUnimplemented, std::move(message)};
}
Status FailedPrecondition(std::string message) {
  return {StatusCode::kFailedPrecondition, std::move(message)};
}
Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

}  // namespace varve
