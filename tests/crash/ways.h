/// The rows of the crash matrix: the ways in which checkpoints are written. Each saves the states
/// 1, 2 and 3, which differ in every value, and tells which of them a reader sees.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "crash/saves.h"
#include "crash/states.h"
#include "publish/claim.h"
#include "publish/files_commit.h"
#include "support/dcp_in_place.h"
#include "support/hfai_part.h"
#include "support/status_matchers.h"

namespace varve::test {

/// One save: of which state, where, over what.
struct Order {
  std::vector<Storage*> storages;  ///< Of each rank.
  std::string path;
  int number = 1;
  Overwrite overwrite = Overwrite::kNever;
  bool mortal = false;  ///< A rank whose storage has stopped sends no more messages.
};

class Way {
 public:
  Way(std::string name, int ranks) : name_(std::move(name)), ranks_(ranks) {}
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  virtual ~Way() = default;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  /// Returns the outcome of each rank, or of all.
  virtual std::vector<Status> SaveAll(const Order& order) = 0;
  /// Returns the number of the state. Errors: those of the reader; Internal for a mix.
  virtual Result<int> Seen(Storage& storage, const std::string& path) = 0;
  /// Makes what is there before the first save.
  virtual Status Prepare(Storage& /*storage*/, const std::string& /*path*/) { return Status::Ok(); }
  /// Makes the save that follows one that has failed or died: of the state that next() says.
  virtual Status SaveNext(const Order& order) { return Save(order); }
  [[nodiscard]] virtual int next() const { return 3; }

  Status Save(const Order& order) {
    const std::vector<Status> outcomes = SaveAll(order);
    for (const Status& outcome : outcomes) {
      EXPECT_TRUE(order.mortal || outcome.ToString() == outcomes[0].ToString())
          << outcomes[0].ToString() << " / " << outcome.ToString();
    }
    return outcomes[0];
  }

  bool apart = false;    ///< Ranks publish one after the other: a save may be incomplete.
  bool has_gap = false;  ///< In an object store an overwrite is in place: nothing, then the new.
  bool leaves_side_files = false;  ///< Of a dead save, in an object store: the next one takes them.
  bool copies = false;             ///< What another save has made.
  bool has_folders = false;        ///< With side files.
  bool is_listed = true;           ///< Its files are those of a checkpoint for `ls`.
  bool stays = false;              ///< Its directory stays, and gc knows none of its files.
  bool is_save = false;            ///< Its errors name the checkpoint.
  bool takes_users = true;         ///< Other files may lie beside the first save.
  bool takes_damaged_only = false;  ///< Overwrite::kDamaged.
  bool saves_a_part = false;        ///< SaveNext is what makes the checkpoint complete.
  bool is_varve = false;            ///< In Varve's own format.
  std::set<int> other_names;        ///< States whose files have other names than the one before.

 private:
  const std::string name_;
  const int ranks_;
};

/// Returns the order of a save of all ranks.
inline Order OrderFor(const Way& way, Storage& storage, const std::string& path, int number,
                      Overwrite overwrite = Overwrite::kNever) {
  return {.storages = std::vector<Storage*>(static_cast<std::size_t>(way.ranks()), &storage),
          .path = path,
          .number = number,
          .overwrite = overwrite};
}

/// Saves of a JobState in a format.
class JobWay : public Way {
 public:
  /// `order`: of ranks that save one after the other and know nothing of each other.
  JobWay(std::string name, Format format, int ranks, std::uint64_t rows,
         std::vector<int> apart_in = {})
      : Way(std::move(name), ranks), format_(format), order_(std::move(apart_in)) {
    apart = !order_.empty();
    is_save = true;
    takes_users = false;
    takes_damaged_only = !apart;
    is_varve = format == Format::kVarve;
    for (std::uint64_t number = 1; number <= 3; ++number) {
      jobs_.push_back(std::make_unique<JobState>(number, ranks, rows));
      if (format == Format::kSafetensors) {
        jobs_.back()->LeaveTensorsAlone();
      }
      if (format == Format::kDcp) {
        jobs_.back()->LeaveStructureOut();
      }
    }
  }

  std::vector<Status> SaveAll(const Order& order) override {
    const JobState& job = *jobs_[static_cast<std::size_t>(order.number - 1)];
    if (apart) {
      return {SaveApart(job, static_cast<std::uint8_t>(order.number), order_, order.path,
                        *order.storages[0], order.overwrite != Overwrite::kNever)};
    }
    return Together(order.storages, order.mortal, [&](Coordinator& rank, Storage& storage) {
      SaveOptions options = SmallSave(false, format_);
      options.overwrite = order.overwrite;
      State state = job.rank(rank.rank());
      state.files = FilesOf(order.number);
      return varve::Save(state, order.path, options, rank, storage).status();
    });
  }

  Result<int> Seen(Storage& storage, const std::string& path) override {
    VARVE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path, storage));
    VARVE_ASSIGN_OR_RETURN(const Content content, ReadContent(*reader));
    for (int number = 1; number <= 3; ++number) {
      const Content& want = jobs_[static_cast<std::size_t>(number - 1)]->content();
      // DCP makes a structure of its own, of the names.
      if (content.tensors == want.tensors && content.objects == want.objects &&
          (format_ != Format::kVarve || content.structure == want.structure)) {
        return CheckFiles(*reader, number).ok() ? Result<int>(number)
                                                : Internal("the side files of another state");
      }
    }
    return Internal("a mix");
  }

 protected:
  /// Returns the side files of a state.
  [[nodiscard]] virtual std::vector<SideFile> FilesOf(int /*number*/) const { return {}; }
  std::vector<std::unique_ptr<JobState>> jobs_;

 private:
  /// Checks that the side files of a state are there, and no other state's.
  [[nodiscard]] Status CheckFiles(CheckpointReader& reader, int number) const {
    std::map<std::string, std::string> want;
    for (const SideFile& file : FilesOf(number)) {
      want[file.name] = file.content;
    }
    for (int state = 1; state <= 3; ++state) {
      for (const SideFile& file : FilesOf(state)) {
        const auto there = reader.ReadFile(file.name);
        const auto wanted = want.find(file.name);
        if (wanted == want.end() ? there.status().code() != StatusCode::kNotFound
                                 : !there.ok() || *there != wanted->second) {
          return Internal(file.name);
        }
      }
    }
    return Status::Ok();
  }

  const Format format_;
  const std::vector<int> order_;
};

/// Saves with side files, of which one is in state 1 alone, and one in the states after it.
class SideFilesWay final : public JobWay {
 public:
  SideFilesWay(std::string name, Format format) : JobWay(std::move(name), format, 1, 24) {
    has_folders = true;
    other_names = {2};
  }

 private:
  [[nodiscard]] std::vector<SideFile> FilesOf(int number) const override {
    const std::string text = std::to_string(number);
    return {{"tokenizer/merges.json", text + "[1]"},
            {"tokenizer/extra/a b.txt", text + "x"},
            {"side.json", text},
            {number == 1 ? "tokenizer/once.txt" : "later/since.txt", text}};
  }
};

/// Ranks apart, and another kind of save that follows the dead one.
class ApartThenNeverWay final : public JobWay {
 public:
  using JobWay::JobWay;
  Status SaveNext(const Order& order) override {
    Order never = order;
    never.overwrite = Overwrite::kNever;  // The dead save never became a checkpoint.
    const Status saved = Save(never);
    return saved.code() == StatusCode::kAlreadyExists ? Save(order) : saved;
  }
};

class ApartThenTogetherWay final : public JobWay {
 public:
  ApartThenTogetherWay(std::string name, Format format, int ranks, std::uint64_t rows,
                       std::vector<int> apart_in)
      : JobWay(std::move(name), format, ranks, rows, std::move(apart_in)) {
    other_names = {3};
  }
  Status SaveNext(const Order& order) override {
    return SaveTogether(*jobs_[2], order.path,
                        std::vector<Storage*>(order.storages.size(), order.storages[0]), true)[0];
  }
};

/// Rank 0 alone, and the others of the same save that go on when it has died.
class ApartThenTheOthersWay final : public JobWay {
 public:
  ApartThenTheOthersWay(std::string name, Format format, std::uint64_t rows)
      : JobWay(std::move(name), format, 3, rows, {0, 1, 2}) {
    saves_a_part = true;
    other_names = {2, 3};
  }
  [[nodiscard]] int next() const override { return 2; }
  std::vector<Status> SaveAll(const Order& order) override {
    return order.number == 1 ? JobWay::SaveAll(order) : std::vector{SaveRanks({0}, order)};
  }
  Status SaveNext(const Order& order) override { return SaveRanks({1, 2}, order); }

 private:
  Status SaveRanks(const std::vector<int>& ranks, const Order& order) {
    return SaveApart(*jobs_[1], 2, ranks, order.path, *order.storages[0], true);
  }
};

/// Ranks together, over what ranks apart have saved.
class TogetherOverApartWay final : public JobWay {
 public:
  TogetherOverApartWay(std::string name, Format format, int ranks, std::uint64_t rows)
      : JobWay(std::move(name), format, ranks, rows) {
    other_names = {2};
  }
  std::vector<Status> SaveAll(const Order& order) override {
    return order.number == 1 ? std::vector{SaveApart(*jobs_[0], 1, {0, 1, 2}, order.path,
                                                     *order.storages[0], false)}
                             : JobWay::SaveAll(order);
  }
};

/// Returns the number that all elements of a checkpoint are. Errors: those of the reader; Internal
/// for a mix.
inline Result<int> NumberIn(Storage& storage, const std::string& path) {
  VARVE_ASSIGN_OR_RETURN(const Content content, ReadContent(path, storage));
  float number = 0;
  for (const auto& [name, text] : content.tensors) {
    for (std::size_t at = text.find(": ") + 2; at < text.size(); at += sizeof(float)) {
      float element = 0;
      std::memcpy(&element, text.data() + at, sizeof(element));
      if (number != 0 && element != number) {
        return Internal("a mix");
      }
      number = element;
    }
  }
  return static_cast<int>(number);
}

/// Checkpoints all of whose elements are the number of their state.
class NumberWay : public Way {
 public:
  using Way::Way;
  Result<int> Seen(Storage& storage, const std::string& path) override {
    return NumberIn(storage, path);
  }
};

/// Parts of hfai's, one of each rank: a model with one tensor of its own.
class HfaiWay final : public NumberWay {
 public:
  HfaiWay(std::string name, int ranks, bool objects)
      : NumberWay(std::move(name), ranks), objects_(objects) {
    has_gap = objects;
    is_save = true;
    takes_users = false;
  }
  std::vector<Status> SaveAll(const Order& order) override {
    return Together(order.storages, order.mortal, [&](Coordinator& rank, Storage& storage) {
      SaveOptions options = SmallSave(false, Format::kHfai);
      options.overwrite =
          order.overwrite == Overwrite::kAlways && objects_ ? Overwrite::kInPlace : order.overwrite;
      return SaveRank(order.number, order.path, options, rank, storage);
    });
  }
  static Status SaveRank(int number, const std::string& path, const SaveOptions& options,
                         Coordinator& rank, Storage& storage) {
    const std::vector<float> memory(3000, static_cast<float>(number));
    const std::string name = "w" + std::to_string(rank.rank());
    State state;
    state.tensors.push_back(
        {name, DType::kFloat32, {3000}, WholeBox({3000}), HostMemory{memory.data()}});
    state.objects.push_back(HfaiPart(rank.rank(), rank.size(), {Value::Str(name), HfaiLeaf(0)}));
    return varve::Save(state, path, options, rank, storage).status();
  }

 private:
  const bool objects_;
};

/// Saves in torch.distributed.checkpoint's format whose files somebody else writes, into a
/// directory that stays; of all ranks, or of rank 0 beside what rank 1 has saved.
class InPlaceWay final : public Way {
 public:
  InPlaceWay(std::string name, bool one_rank) : Way(std::move(name), 1), one_rank_(one_rank) {
    stays = true;
    apart = one_rank;  // Without rank 0 the checkpoint is incomplete, not absent.
  }
  std::vector<Status> SaveAll(const Order& order) override {
    const char seed = static_cast<char>('m' + order.number);
    const bool over = order.overwrite != Overwrite::kNever;
    return {one_rank_ ? SaveRankInPlace(*order.storages[0], order.path, 0, seed, over)
                      : SaveInPlace(*order.storages[0], order.path, seed, over)};
  }
  Status Prepare(Storage& storage, const std::string& path) override {
    VARVE_RETURN_IF_ERROR(MakeDirectories(storage, path + "/__0_7.distcp"));  // A data file's name.
    VARVE_RETURN_IF_ERROR(storage.SyncDirectory(path));
    return one_rank_ ? SaveRankInPlace(storage, path, 1, 'B') : Status::Ok();
  }
  Result<int> Seen(Storage& storage, const std::string& path) override {
    if (!storage.List(path + "/__0_7.distcp").ok()) {
      return Internal("the user's folder is lost");
    }
    VARVE_ASSIGN_OR_RETURN(const Content content, ReadContent(path, storage));
    for (int number = 1; number <= 3; ++number) {
      const char seed = static_cast<char>('m' + number);
      if (content.tensors == std::map<std::string, std::string>{
                                 {"w0", Tensor(seed)}, {"w1", Tensor(one_rank_ ? 'B' : seed)}}) {
        return number;
      }
    }
    return Internal("a mix");
  }

 private:
  static std::string Tensor(char seed) {
    const std::string memory(5000 + static_cast<unsigned char>(seed), seed);
    return "uint8" + ToString(Dims{memory.size()}) + ": " + memory;
  }
  const bool one_rank_;
};

/// OLMo's files of ranks, in one layout and world over another; config.yaml is written last.
class LayoutWay final : public Way {
 public:
  using Layout = std::vector<std::string>;
  LayoutWay(std::string name, Layout from, Layout to)
      : Way(std::move(name), 1), from_(std::move(from)), to_(std::move(to)) {
    is_listed = false;
    takes_users = false;
    other_names = {2};
  }
  static Layout Local(int world) {
    Layout files{"metadata.yaml"};
    for (int rank = 0; rank < world; ++rank) {
      for (const char* part : {"model", "optim", "train"}) {
        files.push_back(std::string(part) + "/rank" + std::to_string(rank) + ".pt");
      }
    }
    return files;
  }
  std::vector<Status> SaveAll(const Order& order) override {
    return {Write(order, order.number == 1 ? from_ : to_, std::to_string(order.number))};
  }
  Result<int> Seen(Storage& storage, const std::string& path) override {
    if (!storage.List(path).ok()) {
      return NotFound("nothing");
    }
    for (int number = 1; number <= 3; ++number) {
      Layout all = number == 1 ? from_ : to_;
      all.emplace_back("config.yaml");
      if (std::all_of(all.begin(), all.end(), [&](const std::string& name) {
            const auto found = ReadWholeFile(storage, JoinPath(path, name), 1 << 20);
            return found.ok() && *found == std::to_string(number);
          })) {
        return number;
      }
    }
    return Internal("a mix");
  }

 private:
  static Status Write(const Order& order, const Layout& files, const std::string& content) {
    Storage& storage = *order.storages[0];
    VARVE_ASSIGN_OR_RETURN(
        const auto commit,
        FilesCommit::Begin(order.path, {.overwrite = order.overwrite, .mark = "config.yaml"},
                           storage));
    std::vector<std::pair<std::string, std::uint64_t>> sizes;
    for (const std::string& name : files) {
      const std::string path = JoinPath(commit->staging(), name);
      VARVE_RETURN_IF_ERROR(MakeDirectories(storage, ParentPath(path)));
      VARVE_RETURN_IF_ERROR(WriteWholeFile(storage, path, content));
      sizes.emplace_back(name, content.size());
    }
    return commit->Publish(sizes, content);
  }
  const Layout from_;
  const Layout to_;
};

}  // namespace varve::test
