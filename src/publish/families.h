/// The two publishers. Their functions stand with the verbs: in commit.cc, remove.cc, garbage.cc,
/// repair.cc, quarantine.cc; those of object stores that have more to do, in records.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "publish/publisher.h"

namespace varve {

class FileSystemPublisher final : public Publisher {
 public:
  using Publisher::Publisher;
  Result<std::unique_ptr<Commit>> Begin(const std::string& path, const CommitTerms& terms) override;
  [[nodiscard]] SavePlace PlaceOf(const std::string& path, const SaveId& id, bool fixed) override;
  Status PublishFile(const std::string& path, const FileTerms& terms,
                     const std::function<Status(const std::string&)>& write) override;
  Result<RemovalReport> Remove(const std::string& path, const RemovalTerms& terms,
                               Readers readers) override;
  Result<GarbageReport> Collect(const std::string& directory, DryRun dry_run,
                                const std::stop_token& stop) override;
  Result<RepairReport> RepairIndex(const std::string& path, const std::stop_token& stop) override;
  Result<std::string> Quarantine(const std::string& path, std::string_view reason) override;
  [[nodiscard]] Status CheckRenames(const std::string& path, std::string_view what) const override;
};

class ObjectPublisher final : public Publisher {
 public:
  using Publisher::Publisher;
  Result<std::unique_ptr<Commit>> Begin(const std::string& path, const CommitTerms& terms) override;
  [[nodiscard]] SavePlace PlaceOf(const std::string& path, const SaveId& id, bool fixed) override;
  Status PublishFile(const std::string& path, const FileTerms& terms,
                     const std::function<Status(const std::string&)>& write) override;
  Result<RemovalReport> Remove(const std::string& path, const RemovalTerms& terms,
                               Readers readers) override;
  Result<GarbageReport> Collect(const std::string& directory, DryRun dry_run,
                                const std::stop_token& stop) override;
  Result<RepairReport> RepairIndex(const std::string& path, const std::stop_token& stop) override;
  Result<std::string> Quarantine(const std::string& path, std::string_view reason) override;
  [[nodiscard]] Status CheckRenames(const std::string& path, std::string_view what) const override;

 private:
  [[nodiscard]] ConditionalWrites& writes() const { return *storage_.extras().conditional_writes; }
};

}  // namespace varve
