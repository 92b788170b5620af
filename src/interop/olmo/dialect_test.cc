#include "interop/olmo/dialect.h"

#include <gtest/gtest.h>

#include "support/pickles.h"
#include "support/status_matchers.h"

namespace varve::dialect_test {
namespace {

using test::FailsWith;
using test::IsOk;
using test::Watched;
using test::pickled::Archive;
using test::pickled::Dict;
using test::pickled::Int;
using test::pickled::kFalse;
using test::pickled::kTrue;
using test::pickled::List;
using test::pickled::Pickle;
using test::pickled::Str;
using test::pickled::Tuple;

std::string Base64Url(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      bits = bits << 8U | (j < bytes.size() ? static_cast<std::uint8_t>(bytes[j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[bits >> (18U - 6U * j) & 63U];
    }
  }
  return text;
}

std::string TensorKey(const std::vector<std::string>& path) {
  return Base64Url(Pickle(Tuple({Tuple(path), kFalse})));
}
std::string ValueKey(const std::vector<std::string>& path) {
  return Base64Url(Pickle(Tuple({Tuple(path), kTrue})));
}

/// A safetensors file of uint8 tensors: keys and contents.
std::string FileOf(const std::vector<std::pair<std::string, std::string>>& tensors) {
  std::string header = "{";
  std::string data;
  for (const auto& [key, content] : tensors) {
    header += (data.empty() && header.size() == 1 ? "\"" : ",\"") + key +
              R"(":{"dtype":"U8","shape":[)" + std::to_string(content.size()) +
              R"(],"data_offsets":[)" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + content.size()) + "]}";
    data += content;
  }
  header += "}";
  return test::Le(header.size(), 8) + header + data;
}

Result<StateNode> Read(const std::string& file) {
  return ReadOlmoSafetensors({"optim.safetensors", file.size(), Watched(file)}, 3);
}

Value ValueOf(const StateNode* node) { return *DecodeValue(node->value); }

TEST(OlmoDialect, NestsTensorsByTheirPaths) {
  auto state = Read(FileOf({{TensorKey({Str("state"), Int(0), Str("exp_avg")}), "abcd"},
                            {TensorKey({Str("state"), Int(1), Str("exp_avg")}), "ef"}}));
  ASSERT_TRUE(IsOk(state));
  StateNode* const ids = state->Find("state");
  ASSERT_NE(ids, nullptr);
  ASSERT_EQ(ids->keys.size(), 2);
  EXPECT_EQ(ids->keys[1], Value::Int(1)) << "an id stays an int";
  const StoredTensor& moment = ids->items[0].Find("exp_avg")->tensor;
  EXPECT_EQ(moment.shape, (Dims{4}));
  EXPECT_EQ(moment.chunks[0].extent.file, 3);
}

TEST(OlmoDialect, OpensValuesThatArePickled) {
  auto state = Read(FileOf({{ValueKey({Str("groups")}), Pickle(List({Dict({Str("lr"), Int(1)})}))},
                            {ValueKey({Str("step")}), Pickle(Int(7))}}));
  ASSERT_TRUE(IsOk(state));
  EXPECT_EQ(ValueOf(state->Find("step")), Value::Int(7));
  EXPECT_EQ(ValueOf(state->Find("groups")->items[0].Find("lr")), Value::Int(1));
}

TEST(OlmoDialect, TakesOtherKeysForPlainNames) {
  auto state = Read(FileOf({{"a.weight", "ab"}, {"YWJj", "cd"}}));
  ASSERT_TRUE(IsOk(state));
  EXPECT_NE(state->Find("a.weight"), nullptr);
  EXPECT_NE(state->Find("YWJj"), nullptr) << "base64, but of no pickle";
}

TEST(OlmoDialect, RefusesAnEntryInTheWayOfAnother) {
  EXPECT_TRUE(FailsWith(
      Read(FileOf({{TensorKey({Str("a")}), "x"}, {TensorKey({Str("a"), Str("b")}), "y"}})),
      StatusCode::kDataLoss, {"\"a.b\" is in the way"}));
}

TEST(OlmoDialect, RefusesAPathThatIsTooDeep) {
  const std::vector<std::string> path(201, Str("a"));
  EXPECT_TRUE(
      FailsWith(Read(FileOf({{TensorKey(path), "x"}})), StatusCode::kDataLoss, {"too deep"}));
}

TEST(OlmoDialect, RefusesANameOfMoreThan64KiB) {
  EXPECT_TRUE(FailsWith(Read(FileOf({{TensorKey({Str(std::string(70'000, 'a'))}), "x"}})),
                        StatusCode::kInvalidArgument, {"a name of 70000 bytes"}));
}

TEST(OlmoDialect, RefusesAValueWhosePickleIsDamaged) {
  EXPECT_TRUE(FailsWith(Read(FileOf({{ValueKey({Str("step")}), "\x80\x02K"}})),
                        StatusCode::kDataLoss, {"the pickle of \"step\""}));
}

TEST(OlmoDialect, KeepsAValueThatNeedsAProgramClosed) {
  const std::string call = test::pickled::Call(test::pickled::Global("os", "system"), {Str("x")});
  auto state = Read(FileOf({{ValueKey({Str("step")}), Pickle(call)}}));
  ASSERT_TRUE(IsOk(state));
  EXPECT_EQ(ValueOf(state->Find("step")).kind, ValueKind::kTorchSave);
}

Value DictOf(std::vector<Value> keys_and_values) {
  return {.kind = ValueKind::kDict, .items = std::move(keys_and_values)};
}
Value LeafOf(std::string number) {
  return {.kind = ValueKind::kTensorLeaf, .text = std::move(number)};
}

/// The file that the entries of a state make, in which tensor N holds the text of tensors[N].
Result<StateNode> WrittenAndRead(const Value& state, const std::vector<std::string>& tensors) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, FlattenForOlmo(state));
  std::vector<std::pair<std::string, std::string>> written;
  for (const OlmoEntry& entry : entries) {
    written.emplace_back(entry.key, entry.tensor ? tensors[*entry.tensor] : entry.pickle);
  }
  return Read(FileOf(written));
}

TEST(OlmoDialect, IsReadAsItWasWritten) {
  const Value groups{.kind = ValueKind::kList,
                     .items = {DictOf({Value::Str("lr"), Value::Int(3)})}};
  auto state = WrittenAndRead(
      DictOf({Value::Str("state"),
              DictOf({Value::Int(0), DictOf({Value::Str("exp_avg"), LeafOf("1")}), Value::Int(1),
                      DictOf({Value::Str("exp_avg"), LeafOf("0")})}),
              Value::Str("param_groups"), groups, Value::Str("nothing"), DictOf({})}),
      {"first", "other"});
  ASSERT_TRUE(IsOk(state));
  const StateNode* const ids = state->Find("state");
  ASSERT_NE(ids, nullptr);
  EXPECT_EQ(ids->keys, (std::vector<Value>{Value::Int(0), Value::Int(1)}));
  EXPECT_EQ(state->Find("state")->items[1].Find("exp_avg")->tensor.shape, (Dims{5}));
  EXPECT_EQ(ValueOf(state->Find("param_groups")->items[0].Find("lr")), Value::Int(3));
  ASSERT_NE(state->Find("nothing"), nullptr) << "an empty dict would be lost between the paths";
  EXPECT_TRUE(state->Find("nothing")->items.empty());
}

TEST(OlmoDialect, HoldsNoTensorInAList) {
  const Value list{.kind = ValueKind::kList, .items = {LeafOf("0")}};
  EXPECT_TRUE(FailsWith(FlattenForOlmo(DictOf({Value::Str("groups"), list})),
                        StatusCode::kUnimplemented, {"\"groups\": a tensor in a list"}));
}

TEST(OlmoFull, ReadsTheDialectByTheNameOfTheFile) {
  const std::string tensors = FileOf({{TensorKey({Str("a"), Str("b")}), "x"}});
  std::vector<RecordCrc> records;
  auto state =
      ReadWholeState({"model.safetensors", tensors.size(), Watched(tensors)}, 0, "model", &records);
  ASSERT_TRUE(IsOk(state));
  EXPECT_NE(state->Find("a")->Find("b"), nullptr);
  const std::string pickle = Archive(Dict({Str("a"), Int(1)}));
  state = ReadWholeState({"model.pt", pickle.size(), Watched(pickle)}, 0, "model", &records);
  ASSERT_TRUE(IsOk(state));
  EXPECT_EQ(ValueOf(state->Find("a")), Value::Int(1));
}

TEST(OlmoFull, CleansTheNamesOfAModelAndNotesTheStoredOnes) {
  StateNode model;
  model.Add("_fsdp_wrapped_module.a", StateNode::OfValue(Value::Int(1)));
  model.Add("b", StateNode::OfValue(Value::Int(2)));
  CleanModelNames(&model);
  EXPECT_EQ(KeyText(model.keys[0]), "a");
  EXPECT_EQ(model.items[0].stored_key, "_fsdp_wrapped_module.a");
  EXPECT_TRUE(model.items[1].stored_key.empty());
}

}  // namespace
}  // namespace varve::dialect_test
