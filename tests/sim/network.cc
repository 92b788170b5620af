#include "sim/network.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"

namespace varve::sim {
namespace {

using test::S3Answer;
using test::S3Request;

constexpr const char* kTokenHeader = "x-amz-meta-varve-upload";

S3Request Parsed(const s3::HttpRequest& request) {
  S3Request parsed;
  parsed.method = request.method;
  const std::size_t path = request.url.find('/', request.url.find("://") + 3);
  const std::size_t question = std::min(request.url.find('?'), request.url.size());
  parsed.path = test::UriDecoded(request.url.substr(path, question - path));
  parsed.query = question < request.url.size() ? request.url.substr(question + 1) : "";
  for (const std::string& line : request.headers) {
    const std::size_t colon = line.find(": ");
    parsed.headers[line.substr(0, colon)] = line.substr(colon + 2);
  }
  parsed.body = AsText(request.body);
  return parsed;
}

/// Returns the answer as the client sees it.
Result<s3::HttpResponse> Received(const s3::HttpRequest& request, const S3Answer& answer) {
  s3::HttpResponse response;
  response.status = answer.status;
  for (const std::string& line : answer.headers) {
    const std::size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    response.headers.emplace_back(std::move(name), line.substr(colon + 2));
  }
  response.headers.emplace_back("content-length", std::to_string(answer.body.size()));
  if (request.method == "HEAD") {
    return response;
  }
  if (request.sink != nullptr && answer.status >= 200 && answer.status < 300) {
    VARVE_RETURN_IF_ERROR(request.sink->Begin(response));
    VARVE_RETURN_IF_ERROR(request.sink->Take(AsByteSpan(answer.body)));
    return response;
  }
  response.body = answer.body;
  return response;
}

bool IsCompletion(const S3Request& request) {
  return request.method == "POST" && request.Parameter("uploadId");
}

bool IsPart(const S3Request& request) {
  return request.method == "PUT" && request.Parameter("uploadId");
}

}  // namespace

/// Returns the answer that a planted bug makes of a request.
std::optional<S3Answer> Network::Planted(const S3Request& request, bool lost) {
  switch (around_.plant) {
    case Plant::kCompletionErrorSwallowed:
      return lost && IsCompletion(request)
                 ? std::optional(S3Answer{200, {}, "<CompleteMultipartUploadResult/>"})
                 : std::nullopt;
    case Plant::kPartErrorSwallowed:
      return lost && IsPart(request) ? std::optional(S3Answer{200, {"ETag: \"lost\""}, ""})
                                     : std::nullopt;
    case Plant::kUploadsNotEnded:
      return request.method == "DELETE" && request.Parameter("uploadId")
                 ? std::optional(S3Answer{204, {}, ""})
                 : std::nullopt;
    default: return std::nullopt;
  }
}

S3Answer Network::Apply(const S3Request& request) {
  if (const auto token = request.headers.find(kTokenHeader); token != request.headers.end()) {
    tokens_[request.path] = token->second;
  }
  S3Answer answer = server_.Handle(request);
  if (around_.plant == Plant::kOtherObjectTaken && request.method == "HEAD" &&
      answer.status == 200) {
    std::erase_if(answer.headers,
                  [](const std::string& line) { return line.starts_with(kTokenHeader); });
    answer.headers.push_back(std::string(kTokenHeader) + ": " + tokens_[request.path]);
  }
  return answer;
}

void Network::DeliverLate() {
  for (const Late& late : std::exchange(late_, {})) {
    (void)Apply(late.request);
  }
}

/// Lets the server get a request, or get it again, after up to some minutes.
void Network::Delay(const S3Request& request) {
  constexpr std::uint64_t kMost = 300'000;
  late_.push_back(
      {around_.scheduler->Now() + std::chrono::milliseconds(around_.random->Below(kMost)),
       request});
}

Result<s3::HttpResponse> Network::Meet(const s3::HttpRequest& request, const S3Request& parsed) {
  test::Random& random = *around_.random;
  constexpr std::uint64_t kLongest = 8'000;
  const auto wait = [&] {
    around_.scheduler->SleepFor(std::chrono::milliseconds(random.Below(kLongest)));
  };
  switch (random.Below(6)) {
    case 0: break;  // Lost.
    case 1: Delay(parsed); break;
    case 2: (void)Apply(parsed); break;
    case 3: {
      const S3Answer answer = Apply(parsed);
      Delay(parsed);
      return Received(request, answer);
    }
    case 4: {
      const bool busy = random.OneIn(2);
      return Received(
          request, {busy ? 503 : 500, {}, test::S3ErrorXml(busy ? "SlowDown" : "InternalError")});
    }
    default:
      (void)Apply(parsed);
      return Received(request, {500, {}, test::S3ErrorXml("InternalError")});
  }
  wait();
  if (const auto planted = Planted(parsed, /*lost=*/true)) {
    return Received(request, *planted);
  }
  return Unavailable("no answer");
}

Result<s3::HttpResponse> Network::Send(Process* process, const s3::HttpRequest& request) {
  const S3Request parsed = Parsed(request);
  if (process == nullptr) {
    const auto planted = Planted(parsed, /*lost=*/false);
    return Received(request, planted ? *planted : Apply(parsed));
  }
  process->Point(request.method + " " + parsed.path + (parsed.query.empty() ? "" : "?") +
                 parsed.query);
  if (process->killed()) {
    return Status(StatusCode::kCancelled, "killed");
  }
  const TimePoint now = around_.scheduler->Now();
  const auto due = std::stable_partition(late_.begin(), late_.end(),
                                         [&](const Late& late) { return late.due > now; });
  for (auto late = due; late != late_.end(); ++late) {
    (void)Apply(late->request);
  }
  late_.erase(due, late_.end());
  if (const auto planted = Planted(parsed, /*lost=*/false)) {
    return Received(request, *planted);
  }
  auto response = trouble_one_in_ > 0 && around_.random->OneIn(trouble_one_in_)
                      ? Meet(request, parsed)
                      : Received(request, Apply(parsed));
  around_.scheduler->Step();  // Others may act before the answer is there.
  if (around_.trace->kept()) {
    around_.trace->Add(
        "  answer to " + request.method + " " + parsed.path + ": " +
        (response.ok() ? std::to_string(response->status) : response.status().ToString()));
  }
  return response;
}

}  // namespace varve::sim
