/// One request of S3Client.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "storage/s3/client.h"

namespace varve::s3 {

/// One request, as often as it is sent.
struct S3Client::Call {
  std::string method;
  ObjectName object;
  NameValues query{};
  NameValues headers{};
  std::span<const std::byte> body{};
  BodySink* sink = nullptr;
  std::uint64_t sink_bytes = 0;                           // That the sink wants.
  bool* tried_before = nullptr;                           // Set where a try had no certain end.
  std::function<Status(std::string_view)> read{};         // Takes the body of a good answer.
  std::optional<std::chrono::milliseconds> time_limit{};  // Less than the settings'.
  std::optional<std::chrono::seconds> stall{};            // Instead of the settings'.

  /// Returns "PUT s3://bucket/key (part 3)".
  [[nodiscard]] std::string Name() const {
    std::string name = method + " " + PathOf(object);
    for (const auto& [key, value] : query) {
      if (key == "partNumber") {
        name += " (part " + value + ")";
      } else if (key == "uploads" || key == "delete") {
        name += "?" + key;
      } else if (key == "prefix") {
        name += " (list " + Printable(value) + ")";
      }
    }
    return name;
  }
};

}  // namespace varve::s3
