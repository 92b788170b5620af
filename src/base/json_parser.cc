// How parsers outlive the objects that make them:
//
// 1. The first parser is made, and with it simdjson's objects, before a function is registered that
//    runs at the exit of the process. Such functions run in the reverse order, so ours runs first.
//    All of that happens when the library is loaded: simdjson ends the process where memory runs out
//    while its objects are made.
// 2. Parsers are made under a mutex, and our function takes it: no parser is being made when
//    simdjson's objects are destroyed.
// 3. Our function makes as many parsers as may be idle, and after it none is made. A parser that
//    exists does not use simdjson's objects.

#include "base/json_parser.h"

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "base/of_process.h"

namespace varve {
namespace {

using Parser = std::unique_ptr<simdjson::dom::parser>;

constexpr std::size_t kMostIdle = 32;
/// A parser holds about eight times the bytes of its largest document.
constexpr std::size_t kMostKeptBytes = 64 << 10;

/// The parsers of a process that no reader has.
class IdleParsers {
 public:
  IdleParsers();

  Parser Take() {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      Parser parser = std::move(idle_.back());
      idle_.pop_back();
      return parser;
    }
    if (exits_) {
      return nullptr;
    }
    return Made();
  }

  void Return(Parser parser) {
    const std::scoped_lock lock(mutex_);
    if (exits_ || (idle_.size() < kMostIdle && parser->capacity() <= kMostKeptBytes)) {
      idle_.push_back(std::move(parser));
    }
  }

  void Exit() {
    const std::scoped_lock lock(mutex_);
    exits_ = true;
    Fill(kMostIdle);
  }

 private:
  /// Makes parsers until so many are idle, or memory runs out.
  void Fill(std::size_t count) {
    while (idle_.size() < count) {
      Parser parser = Made();
      if (parser == nullptr) {
        return;
      }
      idle_.push_back(std::move(parser));
    }
  }

  /// Makes a parser with everything that simdjson's objects make of it.
  static Parser Made() {
    auto parser = std::make_unique<simdjson::dom::parser>();
    if (parser->allocate(simdjson::dom::MINIMAL_DOCUMENT_CAPACITY) != simdjson::SUCCESS) {
      parser.reset();
    }
    return parser;
  }

  std::mutex mutex_;
  bool exits_ = false;
  std::vector<Parser> idle_;
};

IdleParsers& Idle() {
  // Never destroyed: threads may outlive main.
  static auto* const parsers = new OfProcess<IdleParsers>;
  return parsers->Get();
}

IdleParsers::IdleParsers() {
  idle_.reserve(kMostIdle);
  Fill(1);
  (void)std::atexit([] { Idle().Exit(); });  // Without memory for it exits are as they were.
}

[[maybe_unused]] const IdleParsers& made_at_start = Idle();

}  // namespace

JsonParser::JsonParser() : parser_(Idle().Take()) {}

JsonParser::~JsonParser() {
  if (parser_ != nullptr) {
    Idle().Return(std::move(parser_));
  }
}

simdjson::simdjson_result<simdjson::dom::element> JsonParser::Parse(std::string_view text) {
  if (text.empty()) {
    return simdjson::EMPTY;  // simdjson would copy from a null pointer.
  }
  if (parser_ == nullptr) {
    return simdjson::UNINITIALIZED;
  }
  return parser_->parse(text.data(), text.size());
}

}  // namespace varve
