/// The kind of a file that is no checkpoint, as far as its first bytes show it.
#pragma once

#include <string>
#include <string_view>

namespace varve {

/// Number of bytes that LooksLike examines, if the file has as many.
inline constexpr std::size_t kRevealingBytes = 1024;

/// Returns what a file that begins with `head` looks like: "a NumPy array (.npy)", "text", ...;
/// empty where the bytes do not show it. `name` is looked at where a format has no sign of its own.
std::string_view LooksLike(std::string_view head, std::string_view name);

}  // namespace varve
