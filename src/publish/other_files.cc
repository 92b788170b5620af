// An overwrite replaces a checkpoint and nothing else. Files that the user has put into its
// directory come into the new one, by these steps; the numbers are those of commit.cc.
//
//  4. Before any work, CheckNoneIsTaken looks for a name that the new checkpoint will have, as far
//     as those are known. CheckCanKeep tries one hard link. Where there are none, files are copied,
//     up to 64 MiB in all: with more than that the save is refused here, and names them.
//  7. When all data files are there, KeepOtherFiles makes folders anew and gives each file a second
//     name in the staging directory. A symbolic link is linked itself. The staging directory has
//     the mark .varve-staging from before the first such name until its index is durable. A dead
//     save's directory with the mark is removed as a whole: what is in it has a name elsewhere.
// 11. The old checkpoint is removed; the account of that is in replaced.cc.

#include "publish/other_files.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "catalogue/names.h"
#include "catalogue/own_names.h"

namespace varve {
namespace {

constexpr std::uint64_t kMib = std::uint64_t{1} << 20;
constexpr std::size_t kMaxNamed = 10;

class Walk {
 public:
  Walk(Storage& storage, const std::string& directory, const std::vector<DirectoryEntry>& entries)
      : storage_(storage), directory_(directory), names_(storage, directory, entries) {}

  /// Returns an error where nothing tells the checkpoint's files from the user's.
  [[nodiscard]] const Status& status() const { return names_.status(); }

  Status Visit(const std::string& folder, const std::vector<DirectoryEntry>& entries) {
    for (const DirectoryEntry& entry : entries) {
      std::string name = folder.empty() ? entry.name : JoinPath(folder, entry.name);
      if (entry.is_directory && !entry.is_link) {
        VARVE_RETURN_IF_ERROR(VisitFolder(name));
      } else if (names_.Contains(name)) {
        const bool fits = names_.FitsPattern(name);
        found_.own.push_back({std::move(name), names_.IsIndex(entry.name) && fits, fits});
      } else {
        found_.others.push_back({std::move(name), false, entry.is_link, entry.size});
      }
    }
    return Status::Ok();
  }

  Inventory Take() {
    found_.note_of_removal = names_.NoteOfRemoval();
    return std::move(found_);
  }

 private:
  Status VisitFolder(const std::string& name) {
    const auto entries = storage_.List(JoinPath(directory_, name));
    if (entries.status().code() == StatusCode::kNotFound) {
      return Status::Ok();
    }
    VARVE_RETURN_IF_ERROR(entries.status());
    found_.folders.push_back(name);
    const std::size_t place = found_.others.size();
    const std::size_t own_before = found_.own.size();
    VARVE_RETURN_IF_ERROR(Visit(name, *entries));
    // A folder of which all files are the checkpoint's is the checkpoint's. One without files may
    // be what a removal has left.
    const bool empty = found_.own.size() == own_before;
    if (found_.others.size() > place || (empty && !names_.OwnsFolder(name))) {
      found_.others.insert(found_.others.begin() + static_cast<std::ptrdiff_t>(place),
                           {name, true, false, 0});
    }
    return Status::Ok();
  }

  Storage& storage_;
  const std::string& directory_;
  OwnNames names_;
  Inventory found_;
};

/// Returns "a, b, c and 7 more".
std::string NameFiles(const std::vector<OtherFile>& files) {
  std::string text;
  for (std::size_t i = 0; i < std::min(files.size(), kMaxNamed); ++i) {
    text += (i == 0 ? "" : ", ") + files[i].name;
  }
  if (files.size() > kMaxNamed) {
    text += " and " + std::to_string(files.size() - kMaxNamed) + " more";
  }
  return text;
}

Status CheckCanCopy(const std::string& directory, const std::vector<OtherFile>& files) {
  std::uint64_t bytes = 0;
  for (const OtherFile& file : files) {
    bytes += file.is_link ? 0 : file.size;
  }
  if (bytes <= kMaxCopiedBytes) {
    return Status::Ok();
  }
  return FailedPrecondition(
      "overwrite " + directory +
      ": files in it that are not part of the checkpoint would have to " +
      "be copied, since they cannot be hard-linked: " + std::to_string(bytes / kMib) +
      " MiB, at most " + std::to_string(kMaxCopiedBytes / kMib) + " MiB are; move them elsewhere " +
      "or choose another name: " + NameFiles(files));
}

Status TakenIn(const std::string& directory, const std::string& name) {
  return FailedPrecondition("overwrite " + directory + ": " + name +
                            " is not part of the checkpoint that is there, and the new one has a "
                            "file of that name; move it elsewhere or choose another name");
}

/// Returns true when a file or link has this content.
bool Holds(Storage& storage, const std::string& path, const std::string& content) {
  SymbolicLinks* const links = storage.extras().symbolic_links;
  if (links != nullptr && links->ReadLink(path).ok()) {
    return false;
  }
  const auto found = ReadWholeFile(storage, path, kMaxCopiedBytes);
  return found.ok() && *found == content;
}

/// Returns true when the file `path` is known to have the content of one that is brought.
bool HoldsBrought(Storage& storage, const std::string& path, const BroughtFile& file) {
  return file.content != nullptr
             ? Holds(storage, path, *file.content)
             : !file.same_as.empty() && HoldTheSame(storage, path, file.same_as);
}

/// Copies a file or a symbolic link. `to` is whole, and its content durable, once it is there.
Status Copy(Storage& storage, const std::string& from, const std::string& to, bool is_link) {
  SymbolicLinks* const links = storage.extras().symbolic_links;
  if (is_link && links != nullptr) {
    VARVE_ASSIGN_OR_RETURN(const std::string target, links->ReadLink(from));
    return links->MakeLink(target, to);
  }
  VARVE_ASSIGN_OR_RETURN(const std::string content, ReadWholeFile(storage, from, kMaxCopiedBytes));
  return WriteWholeFile(storage, to, content);
}

/// Links or copies files of one directory into another.
class Keeper {
 public:
  Keeper(Storage& storage, const std::string& from, const std::string& to)
      : storage_(storage), from_(from), to_(to) {}

  Status Keep(const std::vector<OtherFile>& others) {
    std::vector<OtherFile> copies;
    for (const OtherFile& other : others) {
      const Status kept = other.is_directory ? MakeFolder(other.name) : Link(other.name);
      if (kept.code() == StatusCode::kUnimplemented) {
        copies.push_back(other);
      } else {
        VARVE_RETURN_IF_ERROR(kept);
      }
    }
    VARVE_RETURN_IF_ERROR(CheckCanCopy(from_, copies));
    for (const OtherFile& other : copies) {
      const Status kept = Copy(storage_, From(other.name), To(other.name), other.is_link);
      VARVE_RETURN_IF_ERROR(
          Resolve(other.name, kept).Annotate("overwrite " + from_ + ": keep " + other.name));
    }
    for (const std::string& folder : folders_) {
      VARVE_RETURN_IF_ERROR(storage_.SyncDirectory(To(folder)));
    }
    return Status::Ok();
  }

 private:
  [[nodiscard]] std::string From(const std::string& name) const { return JoinPath(from_, name); }
  [[nodiscard]] std::string To(const std::string& name) const { return JoinPath(to_, name); }

  Status MakeFolder(const std::string& name) {
    const Status made = storage_.MakeDirectory(To(name));
    if (made.code() == StatusCode::kAlreadyExists && !storage_.List(To(name)).ok()) {
      return Taken(name);
    }
    folders_.push_back(name);
    return made.code() == StatusCode::kAlreadyExists ? Status::Ok() : made;
  }

  Status Link(const std::string& name) {
    HardLinks* const links = storage_.extras().hard_links;
    return links == nullptr ? Unimplemented("no hard links")
                            : Resolve(name, links->Link(From(name), To(name)));
  }

  /// Success also for a file that is there already, and for one that has disappeared.
  Status Resolve(const std::string& name, const Status& kept) {
    if (kept.code() == StatusCode::kAlreadyExists) {
      return HoldTheSame(storage_, From(name), To(name)) ? Status::Ok() : Taken(name);
    }
    return kept.code() == StatusCode::kNotFound ? Status::Ok() : kept;
  }

  [[nodiscard]] Status Taken(const std::string& name) const { return TakenIn(from_, name); }

  Storage& storage_;
  const std::string& from_;
  const std::string& to_;
  std::vector<std::string> folders_;
};

}  // namespace

Result<Inventory> TakeInventory(Storage& storage, const std::string& directory) {
  VARVE_ASSIGN_OR_RETURN(const auto entries, storage.List(directory));
  Walk walk(storage, directory, entries);
  VARVE_RETURN_IF_ERROR(walk.status());
  VARVE_RETURN_IF_ERROR(walk.Visit("", entries));
  return walk.Take();
}

Status CheckNoneIsTaken(Storage& storage, const std::string& directory,
                        const std::vector<OtherFile>& others,
                        const std::vector<BroughtFile>& brought) {
  std::map<std::string_view, const OtherFile*> by_name;
  for (const OtherFile& other : others) {
    by_name[other.name] = &other;
  }
  for (const BroughtFile& file : brought) {
    const std::string_view name = file.name;
    for (std::size_t end = name.find('/'); end != std::string_view::npos;
         end = name.find('/', end + 1)) {
      const auto folder = by_name.find(name.substr(0, end));
      if (folder != by_name.end() && !folder->second->is_directory) {
        return TakenIn(directory, folder->second->name);
      }
    }
    const auto found = by_name.find(name);
    if (found != by_name.end() && (found->second->is_directory ||
                                   !HoldsBrought(storage, JoinPath(directory, file.name), file))) {
      return TakenIn(directory, file.name);
    }
  }
  return Status::Ok();
}

Status CheckCanKeep(Storage& storage, const std::string& directory,
                    const std::vector<OtherFile>& others, const std::string& staging) {
  std::vector<OtherFile> files;
  std::copy_if(others.begin(), others.end(), std::back_inserter(files),
               [](const OtherFile& other) { return !other.is_directory; });
  if (files.empty()) {
    return Status::Ok();
  }
  HardLinks* const links = storage.extras().hard_links;
  if (links != nullptr) {
    const std::string probe = JoinPath(staging, kStagingMark);
    const Status linked = links->Link(JoinPath(directory, files.front().name), probe);
    if (linked.code() != StatusCode::kUnimplemented) {
      return storage.Remove(probe);  // Another error is KeepOtherFiles' to report.
    }
  }
  return CheckCanCopy(directory, files);
}

Status KeepOtherFiles(Storage& storage, const std::string& directory,
                      const std::vector<OtherFile>& others, const std::string& staging) {
  return Keeper(storage, directory, staging).Keep(others);
}

bool HoldTheSame(Storage& storage, const std::string& a, const std::string& b) {
  if (HardLinks* links = storage.extras().hard_links; links != nullptr) {
    if (const auto one = links->AreOneFile(a, b); one.ok() && *one) {
      return true;
    }
  }
  if (SymbolicLinks* links = storage.extras().symbolic_links; links != nullptr) {
    const auto of_a = links->ReadLink(a);
    const auto of_b = links->ReadLink(b);
    if (of_a.ok() || of_b.ok()) {
      return of_a.ok() && of_b.ok() && *of_a == *of_b;
    }
  }
  const auto of_a = ReadWholeFile(storage, a, kMaxCopiedBytes);
  const auto of_b = ReadWholeFile(storage, b, kMaxCopiedBytes);
  return of_a.ok() && of_b.ok() && *of_a == *of_b;
}

}  // namespace varve
