#include "worker/data/corpus.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/hash.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

constexpr size_t kProblemsShown = 10;

// The first bytes of a file, by which the formats below are recognized.
std::string FirstBytes(const std::string& path) {
  char bytes[4] = {};
  std::ifstream(path, std::ios::binary).read(bytes, sizeof bytes);
  return {bytes, sizeof bytes};
}

// The command that unpacks a compressed file with these first bytes; empty: it is not compressed.
absl::string_view UnpackerOf(absl::string_view first_bytes) {
  if (absl::StartsWith(first_bytes, "\x1f\x8b\x08")) return "gunzip";
  if (absl::StartsWith(first_bytes, "\x28\xb5\x2f\xfd")) return "unzstd";
  return absl::StartsWith(first_bytes, "PK\x03\x04") ? "unzip" : "";
}

// Why a file of a table cannot be used, with the command that exports it.
std::string TableProblem(const std::string& path, bool is_parquet) {
  const bool is_tsv = absl::EndsWith(path, ".tsv");
  const absl::string_view read = is_parquet ? "parquet" : "csv";
  return absl::StrCat(path, ": is a ",
                      is_parquet ? "Parquet"
                      : is_tsv   ? "TSV"
                                 : "CSV",
                      " file; write it as JSONL and name that in train.data.jsonl: python3 -c \"import sys, pandas; "
                      "pandas.read_",
                      read, "(sys.argv[1]", is_tsv ? ", sep='\\t'" : "",
                      ").to_json(sys.argv[2], orient='records', lines=True, force_ascii=False)\" ", path, " OUT.jsonl");
}

// The first folder of a pattern that could not be listed, and why: glob passes no object to its callback.
thread_local std::string unlisted_folder;

// Called by glob for each folder that it cannot list; without this function, it would pass the folder over in silence.
// A folder that does not exist (any more) matches nothing.
int OnUnlistedFolder(const char* path, int error) {
  if (error == ENOENT) return 0;
  unlisted_folder = absl::StrCat(path, " cannot be listed (", std::strerror(error), ")");
  return 1;
}

// Collects the files that the options name, and all problems with them.
class Search {
 public:
  explicit Search(const CorpusOptions& options) : key_(options.key), suffix_(options.suffix) {
    std::error_code ignored;
    if (!options.run_folder.empty()) run_folder_ = fs::weakly_canonical(options.run_folder, ignored);
  }

  void Add(const std::string& path) {
    std::error_code error;
    fs::file_status status = fs::status(path, error);
    if (fs::is_directory(status)) {
      AddFolder(path);
    } else if (fs::exists(status)) {
      AddFile(path, /*is_named=*/true, /*may_name_table=*/true);
    } else if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
      AddProblem(absl::StrCat(path, ": ", error.message()));
    } else if (path.find_first_of("*?[") != std::string::npos) {
      AddGlob(path);
    } else {
      AddProblem(absl::StrCat(path, ": no such file or folder"));
    }
  }

  // Returns the files found since the last call, sorted by path. A file that several paths lead to is listed once,
  // under its first path.
  std::vector<Corpus::File> TakeFiles() {
    std::sort(files_.begin(), files_.end(), [](const Found& a, const Found& b) { return a.path < b.path; });
    std::set<std::pair<dev_t, ino_t>> seen;
    std::vector<Corpus::File> files;
    for (Found& found : files_) {
      if (seen.insert(found.identity).second) files.push_back({std::move(found.path), found.num_bytes});
    }
    files_.clear();
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

  // `is_named`: the options contain this path. `may_name_table`: they contain this path or a pattern that matches it,
  // not only a folder that the file is in.
  void AddFile(const std::string& path, bool is_named, bool may_name_table) {
    if (!is_named && !absl::EndsWith(path, suffix_)) return;
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
    // The CSV files of a folder may be meant as text.
    const bool is_csv =
        may_name_table && suffix_ != kCsvFileSuffix && (absl::EndsWith(path, ".csv") || absl::EndsWith(path, ".tsv"));
    const std::string first_bytes = FirstBytes(path);
    const bool is_parquet = first_bytes == "PAR1";
    if (is_csv || is_parquet) return AddProblem(TableProblem(path, is_parquet));
    // Files of tokens and rows have a suffix. Their tokens may begin with any bytes.
    const absl::string_view unpacker = may_name_table && suffix_.empty() ? UnpackerOf(first_bytes) : "";
    if (!unpacker.empty()) {
      return AddProblem(absl::StrCat(path, ": is compressed; unpack it (", unpacker, " ", path,
                                     ") and name the unpacked file instead"));
    }
    files_.push_back({path, info.st_size, {info.st_dev, info.st_ino}});
  }

  // Whether a folder from which all files are read is the run folder or contains it.
  bool HoldsRunFolder(const std::string& path) const {
    if (run_folder_.empty() || !suffix_.empty()) return false;
    std::error_code error;
    const fs::path folder = fs::canonical(path, error);
    if (error) return false;
    return std::mismatch(folder.begin(), folder.end(), run_folder_.begin(), run_folder_.end()).first == folder.end();
  }

  void AddFolder(const std::string& path) {
    if (HoldsRunFolder(path)) {
      return AddProblem(absl::StrCat(path, ": the folder contains checkpoint.dir (", run_folder_.string(),
                                     "), whose files would become a part of the data; choose another checkpoint.dir, "
                                     "or name folders and files outside of it in ",
                                     key_));
    }
    size_t before = files_.size(), problems_before = problems_.size();
    std::error_code error;
    fs::recursive_directory_iterator it(path, error), end;
    while (!error && it != end) {
      std::error_code ignored;
      if (!it->is_directory(ignored)) {
        AddFile(it->path().string(), /*is_named=*/false, /*may_name_table=*/false);
      } else if (it->is_symlink(ignored)) {
        AddProblem(absl::StrCat(it->path().string(),
                                ": is a link to a folder, which is not followed; name its target in ", key_,
                                ", or remove the link"));
      }
      it.increment(error);
    }
    if (error) AddProblem(absl::StrCat(path, ": cannot be listed (", error.message(), ")"));
    if (files_.size() == before && problems_.size() == problems_before) {
      AddProblem(absl::StrCat(path, ": the folder holds no ",
                              suffix_.empty() ? "text" : absl::StrCat("file that ends in ", suffix_)));
    }
  }

  void AddGlob(const std::string& pattern) {
    const size_t before = files_.size(), problems_before = problems_.size();
    glob_t matches = {};
    unlisted_folder = "a folder cannot be listed";
    int result = glob(pattern.c_str(), 0, OnUnlistedFolder, &matches);
    if (result == 0) {
      for (size_t i = 0; i < matches.gl_pathc; ++i) {
        std::error_code error;
        std::string path = matches.gl_pathv[i];
        fs::is_directory(path, error) ? AddFolder(path) : AddFile(path, /*is_named=*/false, /*may_name_table=*/true);
      }
      if (files_.size() == before && problems_.size() == problems_before) {
        AddProblem(absl::StrCat(pattern, ": the pattern matches no file that holds data",
                                suffix_.empty() ? "" : absl::StrCat(" and ends in ", suffix_)));
      }
    } else if (result == GLOB_NOMATCH) {
      AddProblem(absl::StrCat(pattern, ": the pattern matches nothing"));
    } else {
      AddProblem(absl::StrCat(
          pattern, ": the pattern cannot be read: ", result == GLOB_ABORTED ? unlisted_folder : "memory is short"));
    }
    globfree(&matches);
  }

  const std::string key_, suffix_;
  fs::path run_folder_;  // empty: folders are not compared with it
  std::vector<Found> files_;
  std::vector<std::string> problems_;
};

absl::Status ChangedError(const std::string& path) {
  return absl::UnknownError(absl::StrCat(path,
                                         " was changed or replaced while this program read it. Files of data must not "
                                         "be written to while they are in use: wait until the new content is complete, "
                                         "then start the job again"));
}

absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const Corpus::File& file) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MappedFile::Open(file.path));
  if (mapped->info().st_size != file.num_bytes) return ChangedError(file.path);
  return mapped;
}

// What shows that a file is another one, or has another content, than when it was opened.
std::string StampOf(const struct stat& info) {
  const auto nanoseconds = [](const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; };
  return absl::StrCat(info.st_size, " ", nanoseconds(info.st_mtim), " ", nanoseconds(info.st_ctim), " ", info.st_ino);
}

// Adds a problem for each training part that is shorter than a sample, and one if all validation parts are. A group
// without any text has been reported already.
void CheckLengths(const CorpusOptions& options, const std::vector<Corpus::Group>& groups, Search& search) {
  const int64_t sample_bytes = options.length + 1;
  const std::string sample = absl::StrCat("shorter than one sample of train.batch.length + 1 = ", sample_bytes);
  int64_t total = 0, validation = 0, longest = 0;
  for (size_t i = 0; i < groups.size(); ++i) {
    const int64_t left = groups[i].num_bytes - groups[i].num_train_bytes;
    total += groups[i].num_bytes;
    validation += left;
    longest = std::max(longest, left);
    if (!options.trains || groups[i].num_bytes == 0 || groups[i].num_train_bytes >= sample_bytes) continue;
    search.AddProblem(absl::StrCat(options.separate ? absl::StrCat(options.paths[i], ": ") : "",
                                   "the text for training is ", groups[i].num_train_bytes, " bytes (",
                                   groups[i].num_bytes, " less ", left, " for validation), ", sample,
                                   " bytes; provide more text or a smaller train.batch.length"));
  }
  if (!options.evaluates || total == 0 || longest >= sample_bytes) return;
  if (!options.trains) {
    search.AddProblem(absl::StrCat("the text is ", total, " bytes, ", sample, " bytes; provide more text"));
    return;
  }
  search.AddProblem(absl::StrCat("the text for validation is ", validation, " bytes (", options.validation, " of ",
                                 total, "), ", sample,
                                 " bytes; provide more text, a larger train.data.validation, or do not evaluate"));
}

}  // namespace

void Corpus::AddGroup(std::vector<File> files, double validation) {
  Group group{.first_file = files_.size(), .end_file = files_.size() + files.size(), .begin = num_bytes_};
  for (File& file : files) {
    group.num_bytes += file.num_bytes;
    files_.push_back(std::move(file));
  }
  group.num_train_bytes = group.num_bytes - std::llround(validation * static_cast<double>(group.num_bytes));
  num_bytes_ += group.num_bytes;
  groups_.push_back(group);
}

int64_t Corpus::num_validation_bytes() const {
  int64_t sum = 0;
  for (const Group& group : groups_) sum += group.num_bytes - group.num_train_bytes;
  return sum;
}

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::Open(const CorpusOptions& options) {
  Search search(options);
  std::unique_ptr<Corpus> corpus(new Corpus);
  for (const std::string& path : options.paths) {
    search.Add(path);
    if (options.separate) corpus->AddGroup(search.TakeFiles(), options.validation);
  }
  if (options.paths.empty()) search.AddProblem("no path is given");
  if (!options.separate) corpus->AddGroup(search.TakeFiles(), options.validation);
  if (options.length > 0) CheckLengths(options, corpus->groups_, search);
  absl::Status status = search.status();
  if (!status.ok()) return status;

  int64_t start = 0;
  for (const File& file : corpus->files_) {
    ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MapFile(file));
    corpus->mappings_.push_back({.file = std::move(mapped), .start = start});
    start += file.num_bytes;
  }
  corpus->identity_ = corpus->HashMetadata();
  return corpus;
}

void Corpus::SetRules(absl::string_view rules) {
  rules_ = std::string(rules);
  identity_ = HashMetadata();
}

absl::string_view Corpus::ContentsOf(size_t file) const { return mappings_[file].file->bytes(); }

absl::Status Corpus::CheckUntouched(size_t file) const {
  struct stat now = {};
  const bool is_same =
      stat(files_[file].path.c_str(), &now) == 0 && StampOf(now) == StampOf(mappings_[file].file->info());
  return is_same ? absl::OkStatus() : ChangedError(files_[file].path);
}

absl::Status Corpus::CheckUntouched() const {
  for (size_t file = 0; file < files_.size(); ++file) RETURN_IF_ERROR(CheckUntouched(file));
  return absl::OkStatus();
}

std::string Corpus::HashMetadata() const {
  std::string list = rules_;
  for (size_t i = 0; i < files_.size(); ++i) {
    absl::StrAppend(&list, files_[i].path, absl::string_view("\0", 1), StampOf(mappings_[i].file->info()), "\n");
  }
  return HashHex(list);
}

Corpus::~Corpus() = default;

void Corpus::Read(int64_t start, absl::Span<uint8_t> out) const {
  // The file that contains `start`: the last one that does not begin after it.
  auto after = std::upper_bound(mappings_.begin(), mappings_.end(), start,
                                [](int64_t position, const Mapping& mapping) { return position < mapping.start; });
  size_t file = static_cast<size_t>(after - mappings_.begin()) - 1;
  while (!out.empty()) {
    int64_t offset = start - mappings_[file].start;
    size_t count = std::min<size_t>(out.size(), static_cast<size_t>(files_[file].num_bytes - offset));
    std::memcpy(out.data(), mappings_[file].file->bytes().data() + offset, count);
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
  constexpr size_t kChunkBytes = 256 << 10;
  Hasher content_hasher;
  std::string list;
  fingerprint_ = {.num_files = files_.size(), .num_bytes = static_cast<uint64_t>(num_bytes_)};
  for (size_t i = 0; i < files_.size(); ++i) {
    absl::StrAppend(&list, files_[i].path, absl::string_view("\0", 1), files_[i].num_bytes, "\n");
    Hasher file_hasher;
    const absl::string_view contents = ContentsOf(i);
    for (size_t offset = 0; offset < contents.size(); offset += kChunkBytes) {
      const absl::string_view chunk = contents.substr(offset, kChunkBytes);
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
