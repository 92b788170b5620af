#include "support/s3_objects.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

namespace varve::test {
namespace {

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

/// Returns the ETag of content.
std::string EtagOf(const std::string& content) {
  return "\"" + std::to_string(std::hash<std::string>()(content)) + "\"";
}

/// Returns the header lines that describe an object and come back with it.
std::vector<std::string> MetadataIn(const S3Request& request) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : request.headers) {
    if (name.starts_with("x-amz-meta-")) {
      lines.push_back(name + ": " + value);
    }
  }
  return lines;
}

/// Returns the text between two others, from `at` on, which is set behind them.
std::optional<std::string> Between(const std::string& text, const std::string& begin,
                                   const std::string& end, std::size_t* at) {
  const std::size_t from = text.find(begin, *at);
  if (from == std::string::npos) {
    return std::nullopt;
  }
  const std::size_t first = from + begin.size();
  const std::size_t last = text.find(end, first);
  *at = last + end.size();
  return text.substr(first, last - first);
}

}  // namespace

std::string UriDecoded(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string S3ErrorXml(const std::string& code) {
  return "<Error><Code>" + code + "</Code><Message>scripted</Message></Error>";
}

std::optional<std::string> S3Request::Parameter(const std::string& name) const {
  for (std::size_t at = 0; at < query.size();) {
    const std::size_t end = std::min(query.find('&', at), query.size());
    const std::string one = query.substr(at, end - at);
    const std::size_t equals = std::min(one.find('='), one.size());
    if (one.substr(0, equals) == name) {
      return UriDecoded(equals < one.size() ? one.substr(equals + 1) : "");
    }
    at = end + 1;
  }
  return std::nullopt;
}

S3Answer S3Objects::Handle(const S3Request& request) {
  const std::string name = request.path.substr(1);
  const std::size_t slash = name.find('/');
  const std::string bucket = name.substr(0, slash);
  if (slash == std::string::npos) {
    return request.Parameter("delete") ? DeleteMany(bucket, request) : List(bucket, request);
  }
  if (request.method == "GET" || request.method == "HEAD") {
    return Get(name, request);
  }
  if (request.method == "PUT") {
    return Write(name, request);
  }
  if (request.method == "DELETE") {
    const auto upload = request.Parameter("uploadId");
    if (upload) {
      return uploads_.erase(*upload) == 1 ? S3Answer{204, {}, ""}
                                          : S3Answer{404, {}, S3ErrorXml("NoSuchUpload")};
    }
    objects_.erase(name);
    return {204, {}, ""};
  }
  return request.Parameter("uploads") ? Begin(name, request) : Complete(name, request);
}

S3Answer S3Objects::Begin(const std::string& name, const S3Request& request) {
  const std::string id = "u" + std::to_string(next_upload_++);
  uploads_[id] = {name, {}, MetadataIn(request)};
  return {200,
          {},
          "<InitiateMultipartUploadResult><UploadId>" + id +
              "</UploadId></InitiateMultipartUploadResult>"};
}

S3Answer S3Objects::Get(const std::string& name, const S3Request& request) const {
  const auto found = objects_.find(name);
  if (found == objects_.end()) {
    return {404, {}, S3ErrorXml("NoSuchKey")};
  }
  const std::string& content = found->second;
  std::vector<std::string> headers{"ETag: " + EtagOf(content)};
  if (const auto more = metadata_.find(name); more != metadata_.end()) {
    headers.insert(headers.end(), more->second.begin(), more->second.end());
  }
  const auto range = request.headers.find("range");
  if (range == request.headers.end()) {
    return {200, std::move(headers), content};
  }
  std::size_t begin = 0;
  std::size_t end = 0;
  const std::string text = range->second.substr(std::strlen("bytes="));
  const auto dash = text.find('-');
  begin = std::stoull(text.substr(0, dash));
  end = std::min<std::size_t>(std::stoull(text.substr(dash + 1)), content.size() - 1);
  if (begin >= content.size()) {
    return {416, {}, S3ErrorXml("InvalidRange")};
  }
  headers.push_back("Content-Range: bytes " + std::to_string(begin) + "-" + std::to_string(end) +
                    "/" + std::to_string(content.size()));
  return {206, std::move(headers), content.substr(begin, end - begin + 1)};
}

S3Answer S3Objects::Write(const std::string& name, const S3Request& request) {
  last_put_ = request.headers;
  if (const auto upload = request.Parameter("uploadId")) {
    const auto found = uploads_.find(*upload);
    if (found == uploads_.end()) {
      return {404, {}, S3ErrorXml("NoSuchUpload")};
    }
    found->second.parts[std::stoi(*request.Parameter("partNumber"))] = request.body;
    return {200, {"ETag: " + EtagOf(request.body)}, ""};
  }
  if (obeys_ && request.headers.contains("if-none-match") && objects_.contains(name)) {
    return {412, {}, S3ErrorXml("PreconditionFailed")};
  }
  objects_[name] = request.body;
  metadata_[name] = MetadataIn(request);
  return {200, {"ETag: " + EtagOf(request.body)}, ""};
}

S3Answer S3Objects::Complete(const std::string& name, const S3Request& request) {
  const auto found = uploads_.find(request.Parameter("uploadId").value_or(""));
  if (found == uploads_.end()) {
    return {404, {}, S3ErrorXml("NoSuchUpload")};
  }
  std::string content;
  std::size_t at = 0;
  while (const auto number = Between(request.body, "<PartNumber>", "</PartNumber>", &at)) {
    const auto etag = Between(request.body, "<ETag>&quot;", "&quot;</ETag>", &at);
    const auto part = found->second.parts.find(std::stoi(*number));
    if (part == found->second.parts.end() || EtagOf(part->second) != "\"" + *etag + "\"") {
      return {400, {}, S3ErrorXml("InvalidPart")};
    }
    content += part->second;
  }
  objects_[name] = std::move(content);
  metadata_[name] = std::move(found->second.metadata);
  uploads_.erase(found);
  return {200, {}, "<CompleteMultipartUploadResult/>"};
}

S3Answer S3Objects::DeleteMany(const std::string& bucket, const S3Request& request) {
  for (std::size_t at = request.body.find("<Key>"); at != std::string::npos;
       at = request.body.find("<Key>", at + 1)) {
    const std::size_t begin = at + std::strlen("<Key>");
    objects_.erase(bucket + "/" +
                   request.body.substr(begin, request.body.find("</Key>", begin) - begin));
  }
  return {200, {}, "<DeleteResult/>"};
}

S3Answer S3Objects::List(const std::string& bucket, const S3Request& request) const {
  const std::string prefix = bucket + "/" + request.Parameter("prefix").value_or("");
  if (request.Parameter("uploads")) {
    std::string body = "<ListMultipartUploadsResult>";
    for (const auto& [id, upload] : uploads_) {
      if (upload.name.starts_with(prefix)) {
        body += "<Upload><Key>" + Escaped(upload.name.substr(bucket.size() + 1)) +
                "</Key><UploadId>" + id +
                "</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>";
      }
    }
    return {200, {}, body + "</ListMultipartUploadsResult>"};
  }
  const bool folders = request.Parameter("delimiter").has_value();
  std::string body = "<ListBucketResult><IsTruncated>false</IsTruncated>";
  std::set<std::string> prefixes;
  for (const auto& [name, content] : objects_) {
    if (!name.starts_with(prefix)) {
      continue;
    }
    const std::size_t slash = name.find('/', prefix.size());
    if (folders && slash != std::string::npos) {
      prefixes.insert(name.substr(bucket.size() + 1, slash - bucket.size()));
      continue;
    }
    body += "<Contents><Key>" + Escaped(name.substr(bucket.size() + 1)) + "</Key><Size>" +
            std::to_string(content.size()) + "</Size><LastModified>" + written_ +
            "</LastModified></Contents>";
  }
  for (const std::string& folder : prefixes) {
    body += "<CommonPrefixes><Prefix>" + Escaped(folder) + "</Prefix></CommonPrefixes>";
  }
  return {200, {}, body + "</ListBucketResult>"};
}

void S3Objects::Put(const std::string& name, std::string content) {
  objects_[name] = std::move(content);
  metadata_.erase(name);
}

}  // namespace varve::test
