// The text that a job trains on: files, folders (read recursively) and globs, sorted by the bytes of their paths and
// read as one sequence of bytes, or as one sequence for each path (a group). The files are mapped, not read: a rank
// accesses only the pages of its samples, and ends with the name of the file if a page cannot be read
// (common/mapped_file.h). The last part of a sequence is reserved for evaluation and never trained on.
//
// Thread-safe after Open and SetRules: nothing changes except the fingerprint, which is computed once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mapped_file.h"

namespace trainyard {

struct CorpusOptions {
  std::vector<std::string> paths = {};  // absolute, or relative to the working directory
  bool separate = false;                // each path is a group; otherwise all files are one group
  double validation = 0;                // share of a group's bytes, from the end
  int64_t length = 0;                   // a sample is length + 1 bytes; 0: samples are not made of bytes
  bool trains = true;                   // the training part of each group must hold a sample
  bool evaluates = false;               // the validation part of at least one group must hold a sample
  std::string key = "train.data.text";  // named in errors
  std::string suffix = {};              // files of folders and globs are used only if they end with it
  std::string run_folder = {};          // without a suffix: refused inside the folders that are read
};

// The suffix for files of rows; with any other suffix, CSV files are refused.
inline constexpr char kCsvFileSuffix[] = ".csv";

// What a checkpoint stores about its data, so that a resumed run can check that it reads the same data.
struct CorpusFingerprint {
  uint64_t num_files = 0;
  uint64_t num_bytes = 0;
  std::string files_hash = {};                // xxh3-128, hex, of the sorted list of (path, size)
  std::string content_hash = {};              // xxh3-128, hex, of all bytes in order, and of the rules if there are any
  std::vector<std::string> file_hashes = {};  // of each file's bytes, in the order of the files

  friend bool operator==(const CorpusFingerprint&, const CorpusFingerprint&) = default;
};

class Corpus {
 public:
  struct File {
    std::string path;
    int64_t num_bytes = 0;
  };

  // Files [first_file, end_file) as one sequence.
  struct Group {
    size_t first_file = 0, end_file = 0;
    int64_t begin = 0;  // position of its first byte among the bytes of all groups
    int64_t num_bytes = 0;
    int64_t num_train_bytes = 0;  // the rest, at its end, is for validation
  };

  // Opens and maps every file. Skips empty files inside folders and globs; an empty file given by its own path is an
  // error. A file that several paths of a group lead to is read once. Fails with InvalidArgument, which shows up to ten
  // of the problems found: a path that is missing, unreadable or empty, a glob that leads to no data or to a folder
  // that cannot be listed, text shorter than a sample. Fails with the errors of MappedFile::Open if a file cannot be
  // mapped, and with Unknown if its size changes meanwhile.
  static absl::StatusOr<std::unique_ptr<Corpus>> Open(const CorpusOptions& options);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  const std::vector<File>& files() const { return files_; }
  const std::vector<Group>& groups() const { return groups_; }
  int64_t num_bytes() const { return num_bytes_; }
  int64_t num_validation_bytes() const;  // of all groups

  // Copies bytes [start, start + out.size()). REQUIRES: they are within the corpus.
  void Read(int64_t start, absl::Span<uint8_t> out) const;

  // Sets what decides the tokens in addition to the text itself, such as the tokenizer's hash. The rules become a
  // part of identity() and of the content hash. REQUIRES: called before any other thread uses this object, and before
  // Fingerprint.
  void SetRules(absl::string_view rules);
  // The bytes of files()[file].
  absl::string_view ContentsOf(size_t file) const;

  // A hash of the path, size, times and inode of all files when they were opened, and of the rules: a corpus that is
  // opened after any file was changed or replaced has another hash. Valid on this host only. What is read from the
  // corpus is the content of this identity only if CheckUntouched succeeds after the read.
  const std::string& identity() const { return identity_; }
  // Fails with Unknown, which names the file, if a file was changed or replaced since it was opened, so that its
  // content may be another than that of identity().
  absl::Status CheckUntouched() const;
  absl::Status CheckUntouched(size_t file) const;

  // The first call reads all data to compute the hashes. A job makes this call before its first step if it tokenizes
  // the data or must compare the data with that of a checkpoint, and otherwise at its first save.
  const CorpusFingerprint& Fingerprint() const;

 private:
  struct Mapping {
    std::unique_ptr<MappedFile> file;
    int64_t start = 0;  // of this file in the corpus
  };
  Corpus() = default;
  void AddGroup(std::vector<File> files, double validation);
  void MakeFingerprint() const;
  std::string HashMetadata() const;

  std::vector<File> files_;
  std::string identity_;
  std::vector<Mapping> mappings_;
  std::vector<Group> groups_;
  int64_t num_bytes_ = 0;
  std::string rules_;
  mutable std::once_flag fingerprint_made_;
  mutable CorpusFingerprint fingerprint_;
};

}  // namespace trainyard
