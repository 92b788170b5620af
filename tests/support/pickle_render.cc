#include "support/pickle_render.h"

#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>

namespace varve::test {
namespace {

constexpr int kMaxDepth = 20;

std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char byte : text) {
    if (byte >= ' ' && byte < 0x7F && byte != '\'' && byte != '\\') {
      out += byte;
    } else {
      char hex[8];
      std::snprintf(hex, sizeof(hex), "\\x%02x", static_cast<unsigned char>(byte));
      out += hex;
    }
  }
  return out + "'";
}

std::string Real(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%a", value);
  return text;
}

std::string List(const PickleTree& tree, std::span<const PickleRef> items, int depth) {
  std::string out;
  for (const PickleRef item : items) {
    out += (out.empty() ? "" : ", ") + RenderPickle(tree, item, depth);
  }
  return out;
}

std::string Pairs(const PickleTree& tree, std::span<const PickleRef> pairs, int depth) {
  std::string out;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    out += (out.empty() ? "" : ", ") + RenderPickle(tree, pairs[i], depth) + ": " +
           RenderPickle(tree, pairs[i + 1], depth);
  }
  return out;
}

std::string Object(const PickleTree& tree, const std::string& name, PickleRef node, int depth) {
  const PickleObject& object = tree.object(node);
  std::string out = name + "(";
  if (object.callee != kNoPickle) {
    out += RenderPickle(tree, object.callee, depth) + ", ";
  }
  out += RenderPickle(tree, object.args, depth);
  if (object.kwargs != kNoPickle) {
    out += ", kwargs=" + RenderPickle(tree, object.kwargs, depth);
  }
  if (!object.items.empty()) {
    out += ", items=[" + List(tree, object.items, depth) + "]";
  }
  if (!object.pairs.empty()) {
    out += ", pairs={" + Pairs(tree, object.pairs, depth) + "}";
  }
  if (object.state != kNoPickle) {
    out += ", state=" + RenderPickle(tree, object.state, depth);
  }
  return out + ")";
}

}  // namespace

std::string RenderPickle(const PickleTree& tree) { return RenderPickle(tree, tree.root(), 0); }

std::string RenderPickle(const PickleTree& tree, PickleRef node, int depth) {
  if (++depth > kMaxDepth) {
    return "...";
  }
  switch (tree.kind(node)) {
    case PickleKind::kNone: return "None";
    case PickleKind::kBool: return tree.integer(node) != 0 ? "True" : "False";
    case PickleKind::kInt: return std::to_string(tree.integer(node));
    case PickleKind::kLong: return "long" + Quoted(tree.text(node));
    case PickleKind::kFloat: return Real(tree.real(node));
    case PickleKind::kStr: return Quoted(tree.text(node));
    case PickleKind::kBytes: return "b" + Quoted(tree.text(node));
    case PickleKind::kByteArray: return "bytearray" + Quoted(tree.text(node));
    case PickleKind::kTuple: return "(" + List(tree, tree.items(node), depth) + ")";
    case PickleKind::kList: return "[" + List(tree, tree.items(node), depth) + "]";
    case PickleKind::kDict: return "{" + Pairs(tree, tree.items(node), depth) + "}";
    case PickleKind::kSet: return "set(" + List(tree, tree.items(node), depth) + ")";
    case PickleKind::kFrozenSet: return "frozenset(" + List(tree, tree.items(node), depth) + ")";
    case PickleKind::kGlobal:
      return std::string(tree.module(node)) + ":" + std::string(tree.name(node));
    case PickleKind::kReduce: return Object(tree, "R", node, depth);
    case PickleKind::kNewObject: return Object(tree, "N", node, depth);
    case PickleKind::kPersistent: return Object(tree, "P", node, depth);
    case PickleKind::kFolded:
      return "F(" + std::to_string(tree.tag(node)) + ", " + std::to_string(tree.integer(node)) +
             ")";
  }
  return "?";
}

}  // namespace varve::test
