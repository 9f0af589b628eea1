#include "worker/data/corpus.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/plural.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kProblemsShown = 10;

// Collects the files that the options name, and all problems with them.
class Search {
 public:
  explicit Search(std::string key) : key_(std::move(key)) {}

  void Add(const std::string& path) {
    std::error_code error;
    fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      AddFolder(path);
    } else if (fs::exists(status)) {
      AddFile(path, /*is_named=*/true);
    } else if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
      AddProblem(absl::StrCat(path, ": ", error.message()));
    } else if (path.find_first_of("*?[") != std::string::npos) {
      AddGlob(path);
    } else {
      AddProblem(absl::StrCat(path, ": no such file or folder"));
    }
  }

  // Sorted by path; a file that several paths lead to is listed once, under its first path.
  std::vector<Corpus::File> Files() {
    std::sort(files_.begin(), files_.end(), [](const Found& a, const Found& b) { return a.path < b.path; });
    std::set<std::pair<dev_t, ino_t>> seen;
    std::vector<Corpus::File> files;
    for (Found& found : files_) {
      if (seen.insert(found.identity).second) files.push_back({std::move(found.path), found.num_bytes});
    }
    return files;
  }

  void AddProblem(std::string text) { problems_.push_back(std::move(text)); }

  absl::Status status() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(key_, ": ", JoinFirst(problems_, kProblemsShown, "; ", "; ")));
  }

 private:
  struct Found {
    std::string path;
    int64_t num_bytes;
    std::pair<dev_t, ino_t> identity;
  };

  void AddFile(const std::string& path, bool is_named) {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return AddProblem(absl::StrCat(path, ": ", std::strerror(errno)));
    if (!S_ISREG(info.st_mode)) {
      if (is_named) AddProblem(absl::StrCat(path, ": not a file or folder of text"));
      return;
    }
    if (access(path.c_str(), R_OK) != 0)
      return AddProblem(absl::StrCat(path, ": cannot be read (", std::strerror(errno), ")"));
    if (info.st_size == 0) {
      if (is_named) AddProblem(absl::StrCat(path, ": the file is empty"));
      return;
    }
    files_.push_back({path, info.st_size, {info.st_dev, info.st_ino}});
  }

  void AddFolder(const std::string& path) {
    size_t before = files_.size(), problems_before = problems_.size();
    std::error_code error;
    fs::recursive_directory_iterator it(path, error), end;
    while (!error && it != end) {
      std::error_code ignored;
      if (!it->is_directory(ignored)) AddFile(it->path().string(), /*is_named=*/false);
      it.increment(error);
    }
    if (error) AddProblem(absl::StrCat(path, ": cannot be listed (", error.message(), ")"));
    if (files_.size() == before && problems_.size() == problems_before) {
      AddProblem(absl::StrCat(path, ": the folder holds no text"));
    }
  }

  void AddGlob(const std::string& pattern) {
    glob_t matches;
    int result = glob(pattern.c_str(), 0, nullptr, &matches);
    if (result == 0) {
      for (size_t i = 0; i < matches.gl_pathc; ++i) {
        std::error_code error;
        std::string path = matches.gl_pathv[i];
        fs::is_directory(path, error) ? AddFolder(path) : AddFile(path, /*is_named=*/false);
      }
      globfree(&matches);
    } else if (result == GLOB_NOMATCH) {
      AddProblem(absl::StrCat(pattern, ": the pattern matches nothing"));
    } else {
      AddProblem(absl::StrCat(pattern, ": the pattern cannot be read"));
    }
  }

  const std::string key_;
  std::vector<Found> files_;
  std::vector<std::string> problems_;
};

absl::StatusOr<const uint8_t*> MapFile(const Corpus::File& file) {
  int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", file.path));
  void* data = mmap(nullptr, file.num_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (data == MAP_FAILED) {
    absl::string_view advice = error == ENOMEM ? " (more files than vm.max_map_count allows? combine some)" : "";
    return ErrnoStatus(error, absl::StrCat("cannot map ", file.path, advice));
  }
  return static_cast<const uint8_t*>(data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::Open(const CorpusOptions& options) {
  Search search(options.key);
  for (const std::string& path : options.paths) search.Add(path);
  if (options.paths.empty()) search.AddProblem("no path is given");
  std::unique_ptr<Corpus> corpus(new Corpus);
  corpus->files_ = search.Files();
  for (const File& file : corpus->files_) corpus->num_bytes_ += file.num_bytes;
  int64_t validation_bytes = std::llround(options.validation * static_cast<double>(corpus->num_bytes_));
  corpus->num_train_bytes_ = corpus->num_bytes_ - validation_bytes;

  // Without text a problem with its length would only repeat the other problem.
  int64_t sample_bytes = options.context + 1;
  const bool checks_length = options.context > 0 && !corpus->files_.empty();
  if (checks_length && corpus->num_train_bytes_ < sample_bytes) {
    search.AddProblem(absl::StrCat("the text for training is ", corpus->num_train_bytes_, " bytes (",
                                   corpus->num_bytes_, " less ", validation_bytes,
                                   " for validation), shorter than one sample of context + 1 = ", sample_bytes,
                                   " bytes; provide more text or a smaller context"));
  }
  if (checks_length && options.evaluates && validation_bytes < sample_bytes) {
    search.AddProblem(absl::StrCat("the text for validation is ", validation_bytes, " bytes (", options.validation,
                                   " of ", corpus->num_bytes_,
                                   "), shorter than one sample of context + 1 = ", sample_bytes,
                                   " bytes; provide more text, a larger data.validation, or do not evaluate"));
  }
  absl::Status status = search.status();
  if (!status.ok()) return status;

  int64_t start = 0;
  for (const File& file : corpus->files_) {
    absl::StatusOr<const uint8_t*> data = MapFile(file);
    if (!data.ok()) return data.status();
    corpus->mappings_.push_back({.data = *data, .start = start});
    start += file.num_bytes;
  }
  corpus->identity_ = corpus->HashMetadata();
  return corpus;
}

void Corpus::SetRules(absl::string_view rules) {
  rules_ = std::string(rules);
  identity_ = HashMetadata();
}

absl::string_view Corpus::ContentsOf(size_t file) const {
  return {reinterpret_cast<const char*>(mappings_[file].data), static_cast<size_t>(files_[file].num_bytes)};
}

bool Corpus::IsUntouched() const { return HashMetadata() == identity_; }

std::string Corpus::HashMetadata() const {
  std::string list = rules_;
  const auto nanoseconds = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  for (const File& file : files_) {
    struct stat info = {};
    if (stat(file.path.c_str(), &info) != 0) info = {};
    absl::StrAppend(&list, file.path, absl::string_view("\0", 1), info.st_size, " ", nanoseconds(info.st_mtim), " ",
                    nanoseconds(info.st_ctim), " ", info.st_ino, "\n");
  }
  return HashHex(list);
}

Corpus::~Corpus() {
  for (size_t i = 0; i < mappings_.size(); ++i) {
    munmap(const_cast<uint8_t*>(mappings_[i].data), static_cast<size_t>(files_[i].num_bytes));
  }
}

void Corpus::Read(int64_t start, absl::Span<uint8_t> out) const {
  // The file that contains `start`: the last one that does not begin after it.
  auto after = std::upper_bound(mappings_.begin(), mappings_.end(), start,
                                [](int64_t position, const Mapping& mapping) { return position < mapping.start; });
  size_t file = static_cast<size_t>(after - mappings_.begin()) - 1;
  while (!out.empty()) {
    int64_t offset = start - mappings_[file].start;
    size_t count = std::min<size_t>(out.size(), static_cast<size_t>(files_[file].num_bytes - offset));
    std::memcpy(out.data(), mappings_[file].data + offset, count);
    out.remove_prefix(count);
    start += static_cast<int64_t>(count);
    ++file;
  }
}

const CorpusFingerprint& Corpus::Fingerprint() const {
  std::call_once(fingerprint_made_, [this] { MakeFingerprint(); });
  return fingerprint_;
}

void Corpus::MakeFingerprint() const {
  // Each file is hashed twice while it is in the cache: alone, and as a part of all data.
  constexpr int64_t kChunkBytes = 256 << 10;
  Hasher content_hasher;
  std::string list;
  fingerprint_ = {.num_files = files_.size(), .num_bytes = static_cast<uint64_t>(num_bytes_)};
  for (size_t i = 0; i < files_.size(); ++i) {
    absl::StrAppend(&list, files_[i].path, absl::string_view("\0", 1), files_[i].num_bytes, "\n");
    Hasher file_hasher;
    for (int64_t offset = 0; offset < files_[i].num_bytes; offset += kChunkBytes) {
      const absl::string_view chunk(reinterpret_cast<const char*>(mappings_[i].data) + offset,
                                    static_cast<size_t>(std::min(kChunkBytes, files_[i].num_bytes - offset)));
      content_hasher.Add(chunk);
      file_hasher.Add(chunk);
    }
    fingerprint_.file_hashes.push_back(file_hasher.Hex());
  }
  fingerprint_.files_hash = HashHex(list);
  fingerprint_.content_hash = content_hasher.Hex();
  if (!rules_.empty()) fingerprint_.content_hash = HashHex(absl::StrCat(fingerprint_.content_hash, "\n", rules_));
}

}  // namespace trainyard
