/// What a file is that is no checkpoint, as far as its first bytes tell.
#pragma once

#include <string>
#include <string_view>

namespace varve {

/// Bytes that LooksLike wants to see of a file, if it has as many.
inline constexpr std::size_t kRevealingBytes = 1024;

/// Returns what a file that begins with `head` looks like: "a NumPy array (.npy)", "text", ...;
/// empty where nothing tells. `name` is looked at where a format has no sign of its own.
std::string_view LooksLike(std::string_view head, std::string_view name);

}  // namespace varve
