/// JSON output (RFC 8259): one compact line, always valid whatever bytes the names hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace varve::cli {

/// Appends values in the order of the calls and puts the commas. The caller closes what it opens
/// and gives every member of an object a Key. Each call returns the writer, for chaining:
///   json.BeginObject().Key("step").Number(10).EndObject();
class JsonWriter {
 public:
  JsonWriter& BeginObject() { return Open('{'); }
  JsonWriter& EndObject() { return Close('}'); }
  JsonWriter& BeginArray() { return Open('['); }
  JsonWriter& EndArray() { return Close(']'); }

  JsonWriter& Key(std::string_view key);
  /// Malformed UTF-8 becomes U+FFFD: JSON has no other way to hold it.
  JsonWriter& String(std::string_view text);
  JsonWriter& Strings(const std::vector<std::string>& texts);
  JsonWriter& Number(std::uint64_t number);
  JsonWriter& Numbers(const std::vector<std::uint64_t>& numbers);
  /// Seconds, to the microsecond.
  JsonWriter& Seconds(double seconds);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();

  /// The document with a newline. The writer is spent.
  std::string Take();

 private:
  JsonWriter& Open(char bracket);
  JsonWriter& Close(char bracket);
  /// Puts the comma that the next value or key needs.
  void Separate();
  void AppendString(std::string_view text);

  std::string out_;
  bool needs_comma_ = false;
};

}  // namespace varve::cli
