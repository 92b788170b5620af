#include "save/plans/terms.h"

#include <cstddef>
#include <map>
#include <utility>

#include "base/fields.h"
#include "catalogue/scan.h"
#include "varve/storage.h"

namespace varve {

constexpr std::string_view kMagic = "save plan";  // Other calls exchange messages without it.

/// The part of a message before the plan.
struct TermsHeading {
  std::string magic{kMagic};
  std::vector<SaveTerm> terms;
};

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, SaveTerm>& term) {
  archive(term.name, term.value);
}

template <class Archive>
void Fields(Archive& archive, FieldsOf<Archive, TermsHeading>& heading) {
  archive(heading.magic);
  archive.Check([&] { return heading.magic == kMagic; }, "no save plan");
  archive(heading.terms);
}

namespace {

/// As in Python.
std::string_view OnDifferenceName(OnDifference on_difference) {
  switch (on_difference) {
    case OnDifference::kKeep: return "keep";
    case OnDifference::kFirst: return "first";
    case OnDifference::kError: return "error";
  }
  return "unknown";
}

/// Returns "overwrite (false on rank 0, true on ranks 1, 3)".
std::string Describe(const std::vector<std::vector<SaveTerm>>& ranks, std::size_t number) {
  std::map<std::string, std::vector<std::uint32_t>> by_value;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    by_value[ranks[rank][number].value].push_back(static_cast<std::uint32_t>(rank));
  }
  std::string text;
  for (const auto& [value, holders] : by_value) {
    text += (text.empty() ? "" : ", ") + value + " on " + NameRanks(holders);
  }
  return ranks[0][number].name + " (" + text + ")";
}

/// Returns InvalidArgument where the terms of ranks differ; those that are empty are rank 0's.
Status Compare(std::vector<std::vector<SaveTerm>> ranks) {
  for (auto& terms : ranks) {
    if (terms.empty()) {
      terms = ranks[0];
    }
  }
  std::string differing;
  for (std::size_t number = 0; number < ranks[0].size(); ++number) {
    for (const auto& terms : ranks) {
      if (terms[number] != ranks[0][number]) {
        differing += (differing.empty() ? "" : ", ") + Describe(ranks, number);
        break;
      }
    }
  }
  return differing.empty() ? Status::Ok()
                           : InvalidArgument("ranks differ in " + differing +
                                             "; give all ranks the same arguments");
}

}  // namespace

std::vector<SaveTerm> TermsOf(const SaveOptions& options, std::string_view path, int world_size,
                              bool asynchronous) {
  return {
      {"the checkpoint's name", "\"" + std::string(BaseName(path)) + "\""},
      {"the kind of save", asynchronous ? "asynchronous" : "synchronous"},
      {"the number of ranks", std::to_string(world_size)},
      {"format", std::string(FormatName(options.format))},
      {"overwrite", std::string(OverwriteName(options.overwrite))},
      {"on_difference", std::string(OnDifferenceName(options.on_difference))},
      {"check_replicas", options.check_replicas == CheckReplicas::kFull ? "full" : "samples"},
      {"shard_size", std::to_string(options.shard_size)},
      {"block_bytes", std::to_string(options.block_bytes)},
      {"upload_to", options.upload_to.empty() ? "none" : "\"" + options.upload_to + "\""},
  };
}

Bytes EncodeTerms(const std::vector<SaveTerm>& terms, std::string_view plan) {
  return EncodeFields(TermsHeading{.terms = terms}).append(plan);
}

Status AgreeOnTerms(std::vector<std::string>* messages) {
  std::vector<std::vector<SaveTerm>> ranks;  // Empty where they are the same bytes as rank 0's.
  std::string first;
  bool differ = false;
  for (std::size_t rank = 0; rank < messages->size(); ++rank) {
    std::string& message = (*messages)[rank];
    if (rank > 0 && message.starts_with(first)) {  // As it should be.
      message.erase(0, first.size());
      ranks.emplace_back();
      continue;
    }
    ByteReader in(message);
    TermsHeading heading;
    FieldReader{&in}(heading);
    if (in.failed() || (rank > 0 && heading.terms.size() != ranks[0].size())) {
      return FailedPrecondition("rank " + std::to_string(rank) +
                                " has sent no save plan: it makes another call. All ranks must "
                                "make the same calls in the same order");
    }
    if (rank == 0) {
      first = message.substr(0, in.position());
    }
    differ = differ || rank > 0;
    message.erase(0, in.position());
    ranks.push_back(std::move(heading.terms));
  }
  return differ ? Compare(std::move(ranks)) : Status::Ok();
}

}  // namespace varve
