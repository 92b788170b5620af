// OLMo's files of whole states. An input that begins with `S` is a safetensors file of OLMo's
// dialect (DialectOf). Any other is the pickle of a .pt file. Each is read as a model and as an
// optimizer.

#include "base/bytes.h"
#include "fuzz_target.h"
#include "interop/olmo/dialect.h"
#include "interop/olmo/names.h"
#include "olmo_ranks.h"

namespace varve::olmo_full_fuzzer {
namespace {

std::string Base64Url(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = bits << 8U | (i + j < bytes.size() ? static_cast<std::uint8_t>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kAlphabet[bits >> (18U - 6U * j) & 63U];
    }
  }
  return text;
}

/// Takes one pickle off the front of `*input`.
std::string_view TakePickle(std::string_view* input) {
  std::uint64_t consumed = 0;
  if (!ReadPickle(*input, {}, nullptr, &consumed).ok()) {
    return {};
  }
  const std::string_view pickle = input->substr(0, consumed);
  input->remove_prefix(consumed);
  return pickle;
}

/// Returns a file of the dialect: pairs of pickles, a key and the bytes that its uint8 tensor
/// holds, which are a pickle too where the key says so.
Bytes DialectOf(std::string_view input) {
  std::string header = "{";
  std::string data;
  while (!input.empty()) {
    const std::string_view key = TakePickle(&input);
    const std::string_view value = TakePickle(&input);
    if (key.empty() || value.empty()) {
      break;
    }
    const std::string begin = std::to_string(data.size());
    data += value;
    header += (header.size() > 1 ? ",\"" : "\"") + Base64Url(key) + R"(":{"dtype":"U8","shape":[)" +
              std::to_string(value.size()) + R"(],"data_offsets":[)" + begin + "," +
              std::to_string(data.size()) + "]}";
  }
  header += "}";
  Bytes file;
  ByteWriter(&file).U64(header.size());
  return file + header + data;
}

enum class Part : std::uint8_t { kModel, kOptimizer };

void Read(const std::vector<Bytes>& files, const std::string& name, Part part) {
  std::vector<RecordCrc> records;
  auto state = ReadWholeState(fuzz::NamedFileOf(name, files[0]), 0, "part", &records);
  if (!state.ok()) {
    return;
  }
  if (part == Part::kModel) {
    CleanModelNames(&*state);
  } else if (!NameOptimizerState(GroupParams::kNames, &*state).ok()) {
    return;
  }
  fuzz::CheckState(*std::move(state), files, records, fuzz::Holes::kNone);
}

}  // namespace

VARVE_FUZZ_TARGET(olmo_full) {
  const bool is_dialect = input.starts_with('S');
  if (is_dialect) {
    input.remove_prefix(1);
  }
  const std::vector<Bytes> files{is_dialect ? DialectOf(input) : fuzz::ArchiveOf(input)};
  const std::string name = is_dialect ? "part.safetensors" : "part.pt";
  for (const Part part : {Part::kModel, Part::kOptimizer}) {
    Read(files, name, part);
  }
}

}  // namespace varve::olmo_full_fuzzer
