/// What S3 shares with plain HTTP: connections, retries, ranges.
#pragma once

#include "storage/http/attempts.h"
#include "storage/http/ranges.h"
#include "storage/http/retry.h"
#include "storage/http/transport.h"

namespace varve::s3 {

using http::Answer;
using http::AnswerKind;
using http::BodySink;
using http::HeaderLine;
using http::HttpClient;
using http::HttpRequest;
using http::HttpResponse;
using http::NameValues;
using http::NumberIn;
using http::Printable;
using http::RangeSink;
using http::RetryPolicy;

}  // namespace varve::s3
