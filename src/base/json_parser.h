/// The parser of JSON: every reader of JSON goes through here.
#pragma once

#include <memory>
#include <string_view>

#include <simdjson.h>

namespace varve {

/// Lends one of simdjson's parsers for as long as it lives.
///
/// A parser is kept for the next reader, for two reasons. One that has been used needs no memory
/// for a small document. And simdjson destroys the objects that make parsers when the process
/// exits, while daemon threads of Python may still read JSON; a parser that was made before works
/// on.
///
/// Threads: any thread may make one, at any time, also while the process exits.
class JsonParser {
 public:
  JsonParser();
  JsonParser(const JsonParser&) = delete;
  JsonParser& operator=(const JsonParser&) = delete;
  ~JsonParser();

  /// Returns the root of a document. It views this parser, and is valid until the next call.
  /// Errors: simdjson's; EMPTY for no text; UNINITIALIZED when the process exits and 32 others
  /// read.
  simdjson::simdjson_result<simdjson::dom::element> Parse(std::string_view text);

 private:
  std::unique_ptr<simdjson::dom::parser> parser_;
};

}  // namespace varve
