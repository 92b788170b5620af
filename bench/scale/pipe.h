/// Messages between the processes of the simulation.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <unistd.h>

namespace varve::scale {

[[noreturn]] inline void Die(const std::string& why) {
  std::fputs(("scale: " + why + "\n").c_str(), stderr);
  std::_Exit(1);
}

inline void WriteAll(int fd, const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd, at, size);
    if (written < 0 && errno != EINTR) {
      Die("a process of the simulation has ended");
    }
    at += written > 0 ? written : 0;
    size -= written > 0 ? static_cast<std::size_t>(written) : 0;
  }
}

/// Returns false at the end of the stream.
inline bool ReadAll(int fd, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::read(fd, at, size);
    if (got == 0 || (got < 0 && errno != EINTR)) {
      return false;
    }
    at += got > 0 ? got : 0;
    size -= got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  return true;
}

inline void Put(int fd, std::string_view message) {
  const std::uint64_t size = message.size();
  WriteAll(fd, &size, sizeof(size));
  WriteAll(fd, message.data(), message.size());
}

inline std::string Take(int fd) {
  std::uint64_t size = 0;
  if (!ReadAll(fd, &size, sizeof(size))) {
    Die("a process of the simulation has ended");
  }
  std::string message(size, '\0');
  if (!ReadAll(fd, message.data(), message.size())) {
    Die("a process of the simulation has ended");
  }
  return message;
}

}  // namespace varve::scale
