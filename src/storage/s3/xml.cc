#include "storage/s3/xml.h"

#include <charconv>
#include <cstddef>
#include <ctime>

#include <pugixml.hpp>

#include "base/ascii.h"
#include "storage/s3/object_name.h"
#include "storage/s3/shared.h"

namespace varve::s3 {
namespace {

/// Parses a document and returns its root, whose name is `name`; rclone's server leaves out the
/// "Result" at its end. Errors: Unavailable.
Result<pugi::xml_node> Root(pugi::xml_document& document, std::string_view body,
                            std::string_view name) {
  const auto parsed = document.load_buffer(body.data(), body.size(), pugi::parse_default);
  const pugi::xml_node root = document.document_element();
  constexpr std::string_view kResult = "Result";
  const bool named =
      root.name() == name ||
      (name.ends_with(kResult) && root.name() == name.substr(0, name.size() - kResult.size()));
  if (!parsed || !named) {
    return Unavailable("the server's answer is no " + std::string(name) + " but \"" +
                       Printable(body.substr(0, 100)) + "\"");
  }
  return root;
}

Status Missing(std::string_view what) {
  return Unavailable("the server's answer has no " + std::string(what));
}

/// Returns the text of a child, decoded where `root` says that the server has encoded it.
std::string Decoded(const pugi::xml_node& root, std::string_view text) {
  if (std::string_view(root.child_value("EncodingType")) != "url") {
    return std::string(text);
  }
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::int64_t TimeOf(const char* text) {
  std::tm utc{};
  const char* const rest = ::strptime(text, "%Y-%m-%dT%H:%M:%S", &utc);
  if (rest == nullptr) {
    return 0;
  }
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  std::int64_t ns = static_cast<std::int64_t>(::timegm(&utc)) * kNanoseconds;
  if (*rest == '.') {
    std::int64_t unit = kNanoseconds / 10;
    for (const char* digit = rest + 1; IsDigit(*digit) && unit > 0; ++digit, unit /= 10) {
      ns += (*digit - '0') * unit;
    }
  }
  return ns;
}

Status ParseObject(const pugi::xml_node& root, const pugi::xml_node& node, ListedObject* object) {
  object->key = Decoded(root, node.child_value("Key"));
  const std::string_view size = node.child_value("Size");
  const char* const begin = size.data();
  const char* const end = begin + size.size();
  const auto parsed = std::from_chars(begin, end, object->size);
  if (object->key.empty() || size.empty() || parsed.ptr != end || parsed.ec != std::errc()) {
    return Missing("key or size of an object");
  }
  object->modified_ns = TimeOf(node.child_value("LastModified"));
  object->etag = node.child_value("ETag");
  return Status::Ok();
}

void AppendEscaped(std::string_view text, std::string* out) {
  for (const char c : text) {
    switch (c) {
      case '&': *out += "&amp;"; break;
      case '<': *out += "&lt;"; break;
      case '>': *out += "&gt;"; break;
      case '"': *out += "&quot;"; break;
      case '\r':
      case '\n':
      case '\t': *out += "&#" + std::to_string(static_cast<int>(c)) + ";"; break;
      default: *out += c;
    }
  }
}

}  // namespace

ErrorBody ParseError(std::string_view body) {
  pugi::xml_document document;
  if (body.empty() || !document.load_buffer(body.data(), body.size())) {
    return {};
  }
  const pugi::xml_node root = document.document_element();
  if (std::string_view(root.name()) == "ErrorResponse") {  // Of STS.
    const pugi::xml_node error = root.child("Error");
    return {error.child_value("Code"), error.child_value("Message"), {}};
  }
  if (std::string_view(root.name()) != "Error") {
    return {};
  }
  ErrorBody error{root.child_value("Code"), root.child_value("Message"),
                  root.child_value("Region")};
  if (error.code.empty()) {
    error.code = "Error";
  }
  return error;
}

Result<ListPage> ParseListPage(std::string_view body) {
  pugi::xml_document document;
  VARVE_ASSIGN_OR_RETURN(const pugi::xml_node root, Root(document, body, "ListBucketResult"));
  ListPage page;
  for (const pugi::xml_node node : root.children("Contents")) {
    VARVE_RETURN_IF_ERROR(ParseObject(root, node, &page.objects.emplace_back()));
  }
  for (const pugi::xml_node node : root.children("CommonPrefixes")) {
    page.prefixes.push_back(Decoded(root, node.child_value("Prefix")));
  }
  if (std::string_view(root.child_value("IsTruncated")) == "true") {
    page.next = root.child_value("NextContinuationToken");
    if (page.next.empty()) {
      return Missing("token of the rest of the listing");
    }
  }
  return page;
}

std::int64_t ParseTime(const std::string& text) { return TimeOf(text.c_str()); }

Result<TemporaryKeys> ParseAssumedRole(std::string_view body) {
  pugi::xml_document document;
  const auto parsed = document.load_buffer(body.data(), body.size());
  const pugi::xml_node keys =
      parsed ? document.document_element().first_child().child("Credentials") : pugi::xml_node();
  TemporaryKeys found{keys.child_value("AccessKeyId"), keys.child_value("SecretAccessKey"),
                      keys.child_value("SessionToken"), TimeOf(keys.child_value("Expiration"))};
  if (found.access_key.empty() || found.secret_key.empty() || found.expires_ns == 0) {
    return Missing("keys or their end");
  }
  return found;
}

Result<std::string> ParseUploadId(std::string_view body) {
  pugi::xml_document document;
  VARVE_ASSIGN_OR_RETURN(const pugi::xml_node root,
                         Root(document, body, "InitiateMultipartUploadResult"));
  std::string id = root.child_value("UploadId");
  if (id.empty()) {
    return Missing("upload id");
  }
  return id;
}

Status ParseCompleted(std::string_view body) {
  pugi::xml_document document;
  return Root(document, body, "CompleteMultipartUploadResult").status();
}

Result<UploadsPage> ParseUploadsPage(std::string_view body) {
  pugi::xml_document document;
  VARVE_ASSIGN_OR_RETURN(const pugi::xml_node root,
                         Root(document, body, "ListMultipartUploadsResult"));
  UploadsPage page;
  for (const pugi::xml_node node : root.children("Upload")) {
    OpenUpload upload{Decoded(root, node.child_value("Key")), node.child_value("UploadId"),
                      TimeOf(node.child_value("Initiated"))};
    if (upload.key.empty() || upload.id.empty()) {
      return Missing("key or id of an upload");
    }
    page.uploads.push_back(std::move(upload));
  }
  page.more = std::string_view(root.child_value("IsTruncated")) == "true";
  page.next_key = Decoded(root, root.child_value("NextKeyMarker"));
  page.next_id = root.child_value("NextUploadIdMarker");
  if (page.more && page.next_key.empty()) {
    return Missing("marker of the rest of the listing");
  }
  return page;
}

Result<std::vector<UndeletedObject>> ParseDeleteResult(std::string_view body) {
  pugi::xml_document document;
  VARVE_ASSIGN_OR_RETURN(const pugi::xml_node root, Root(document, body, "DeleteResult"));
  std::vector<UndeletedObject> failed;
  for (const pugi::xml_node node : root.children("Error")) {
    failed.push_back(
        {node.child_value("Key"), node.child_value("Code"), node.child_value("Message")});
  }
  return failed;
}

std::string DeleteBody(const std::vector<std::string>& keys) {
  std::string body = "<Delete><Quiet>true</Quiet>";
  for (const std::string& key : keys) {
    body += "<Object><Key>";
    AppendEscaped(key, &body);
    body += "</Key></Object>";
  }
  return body + "</Delete>";
}

std::string UploadedPart(std::string_view etag, std::string_view crc32c) {
  std::string part = "<ETag>";
  AppendEscaped(etag, &part);
  part += "</ETag>";
  if (!crc32c.empty()) {
    part += "<ChecksumCRC32C>" + std::string(crc32c) + "</ChecksumCRC32C>";
  }
  return part;
}

std::string CompleteBody(const std::vector<std::string>& parts) {
  std::string body = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    body += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber>" + parts[i] + "</Part>";
  }
  return body + "</CompleteMultipartUpload>";
}

}  // namespace varve::s3
