/// The storages that the conformance suite runs against, and its fixture.
#pragma once

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "storage/objects/object_storage.h"
#include "storage/s3/s3_storage.h"
#include "storages/memory.h"
#include "support/object_store.h"
#include "support/s3_server.h"
#include "support/status_matchers.h"
#include "support/temp_dir.h"
#include "varve/storage.h"

namespace varve::storage_conformance_test {

using test::FailsWith;
using test::IsOk;

/// A storage and a folder in it that is empty.
struct Backend {
  virtual ~Backend() = default;
  virtual Storage& storage() = 0;
  virtual std::string folder() = 0;
};

struct PosixBackend final : Backend {
  Storage& storage() override { return PosixStorage(); }
  std::string folder() override { return dir.path(); }
  test::TempDir dir;
};

struct MemoryBackend final : Backend {
  MemoryBackend() { EXPECT_TRUE(IsOk(memory.MakeDirectory("folder"))); }
  Storage& storage() override { return memory; }
  std::string folder() override { return "folder"; }
  MemoryStorage memory;
};

/// The server of support/s3_server.h.
struct ScriptedS3Backend final : Backend {
  Storage& storage() override { return s3; }
  std::string folder() override { return "s3://bucket/folder"; }
  test::S3Server server;
  s3::S3Storage s3{SettingsOf(server.endpoint()),
                   [] { return s3::Credentials{"key", "secret", ""}; }};
  static s3::Settings SettingsOf(const std::string& endpoint) {
    s3::Settings settings;
    settings.endpoint = endpoint;
    return settings;
  }
};

/// The server whose variables are in the file that VARVE_TEST_S3 names; tests/s3/radosgw starts
/// one.
struct RealS3Backend final : Backend {
  RealS3Backend() {
    std::ifstream file(std::getenv("VARVE_TEST_S3"));
    std::map<std::string, std::string> variables;
    for (std::string line; std::getline(file, line);) {
      variables[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    }
    const s3::Settings settings = ScriptedS3Backend::SettingsOf(variables["AWS_ENDPOINT_URL"]);
    const s3::Credentials keys{variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"],
                               ""};
    const auto credentials = [keys] { return keys; };
    EXPECT_TRUE(IsOk(s3::S3Client(settings, credentials)
                         .Put("conformance", {}, /*if_absent=*/false)));  // The bucket.
    s3 = std::make_unique<s3::S3Storage>(settings, credentials);
    EXPECT_TRUE(IsOk(s3->Remove(folder())));
  }
  Storage& storage() override { return *s3; }
  std::string folder() override { return "s3://conformance/folder-" + std::to_string(::getpid()); }
  std::unique_ptr<s3::S3Storage> s3;
};

/// A store that a program has registered.
struct RegisteredBackend final : Backend {
  Storage& storage() override { return objects; }
  std::string folder() override { return "mem://bucket/folder"; }
  ObjectStorage objects{"mem", std::make_shared<test::StoreInMemory>(), {}};
};

struct alignas(kDirectAlignment) Page {
  std::array<std::byte, kDirectAlignment> bytes{};
};

struct Candidate {
  const char* name;
  std::unique_ptr<Backend> (*make)();
};

inline std::unique_ptr<Backend> MakeRealS3() { return std::make_unique<RealS3Backend>(); }

class StorageConformance : public testing::TestWithParam<Candidate> {
 protected:
  void SetUp() override {
    if (GetParam().make == MakeRealS3 && std::getenv("VARVE_TEST_S3") == nullptr) {
      GTEST_SKIP() << "needs a server: VARVE_TEST_S3, see tests/s3/radosgw";
    }
    backend_ = GetParam().make();
  }
  Storage& disk() { return backend_->storage(); }
  std::string Path(const std::string& name) { return JoinPath(backend_->folder(), name); }
  Status Write(const std::string& name, std::string_view content) {
    return WriteWholeFile(disk(), Path(name), content);
  }
  std::string Read(const std::string& name) {
    auto content = ReadWholeFile(disk(), Path(name), 1 << 20);
    return content.ok() ? *content : content.status().ToString();
  }
  std::vector<std::string> Names(const std::string& name = "") {
    const auto entries = disk().List(Path(name));
    EXPECT_TRUE(IsOk(entries));
    std::vector<std::string> names;
    for (const DirectoryEntry& entry : *entries) {
      names.push_back(entry.name);
    }
    return names;
  }

 private:
  std::unique_ptr<Backend> backend_;
};

template <class Made>
std::unique_ptr<Backend> Make() {
  return std::make_unique<Made>();
}
inline const auto kFileSystems = testing::Values(Candidate{"Posix", Make<PosixBackend>},
                                                 Candidate{"Memory", Make<MemoryBackend>});
inline const auto kObjectStores =
    testing::Values(Candidate{"S3", Make<ScriptedS3Backend>}, Candidate{"S3OfCeph", MakeRealS3},
                    Candidate{"Registered", Make<RegisteredBackend>});
inline std::string NameOf(const testing::TestParamInfo<Candidate>& test) { return test.param.name; }

}  // namespace varve::storage_conformance_test
