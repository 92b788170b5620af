/// A directory that is removed with its test.
#pragma once

#include <filesystem>
#include <string>

namespace varve::test {

class TempDir {
 public:
  /// Makes a directory in `place` if that is one, else in the system's place for temporary files.
  explicit TempDir(const std::filesystem::path& place = {}) {
    const bool is_there = !place.empty() && std::filesystem::is_directory(place);
    std::string name =
        ((is_there ? place : std::filesystem::temp_directory_path()) / "varve-test-XXXXXX")
            .string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace varve::test
