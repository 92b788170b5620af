/// A pickle's tree as one line of text, for tests.
#pragma once

#include <string>

#include "interop/pickle/tree.h"

namespace varve::test {

/// Renders containers as Python writes them; text in single quotes, with \xHH for all but printable
/// ASCII; bytes b'...'; floats as C writes them in hex; `module:name` for a global; R(callee,
/// args), N(callee, args) and P(id) for objects, with kwargs=, state=, items= and pairs= where they
/// have such; F(tag, value) for a folded node. Deeper than 20 levels: "...".
std::string RenderPickle(const PickleTree& tree);
std::string RenderPickle(const PickleTree& tree, PickleRef node, int depth);

}  // namespace varve::test
