// The text a job trains on: files, folders (read recursively) and globs, sorted by the bytes of their paths and read as
// one long run of bytes. The files are mapped, not read: a rank touches only the pages of its samples. The last part of
// the run is kept for evaluation and never trained on.
//
// No torch here. Thread-safe after Open: nothing changes but the fingerprint, which is made once.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace trainyard {

struct CorpusOptions {
  std::vector<std::string> paths = {};  // absolute, or relative to the working directory
  double validation = 0;                // share of the bytes, from the end
  int64_t context = 0;                  // a sample is context + 1 bytes
  bool evaluates = false;               // the validation part must hold a sample too
};

// What a checkpoint remembers of its data, to tell whether a resumed run sees the same.
struct CorpusFingerprint {
  uint64_t num_files = 0;
  uint64_t num_bytes = 0;
  std::string files_hash = {};                // xxh3-128, hex, of the sorted list of (path, size)
  std::string content_hash = {};              // xxh3-128, hex, of all bytes in order
  std::vector<std::string> file_hashes = {};  // of each file's bytes, in the order of the files

  friend bool operator==(const CorpusFingerprint&, const CorpusFingerprint&) = default;
};

class Corpus {
 public:
  struct File {
    std::string path;
    int64_t num_bytes = 0;
  };

  // Opens and maps every file. Empty files inside folders and globs are passed over; one that is named itself is an
  // error. A file may be reached in several ways; it is taken once. Possible errors: InvalidArgument with every problem
  // found, at most ten shown: a path that is missing, unreadable or empty, a glob that matches nothing,
  // text shorter than a sample.
  static absl::StatusOr<std::unique_ptr<Corpus>> Open(const CorpusOptions& options);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  const std::vector<File>& files() const { return files_; }
  int64_t num_bytes() const { return num_bytes_; }
  // The first num_train_bytes() are for training, the rest for validation.
  int64_t num_train_bytes() const { return num_train_bytes_; }
  int64_t num_validation_bytes() const { return num_bytes_ - num_train_bytes_; }

  // Copies bytes [start, start + out.size()). REQUIRES: they are within the corpus.
  void Read(int64_t start, absl::Span<uint8_t> out) const;

  // Changes with the path, size, times and inode of any of the files, as they were when they were opened: who changes
  // or replaces one changes it, too. Of this host.
  const std::string& identity() const { return identity_; }
  // Whether it would still be the same: nobody has touched a file since.
  bool IsUntouched() const;

  // Reads everything at its first call, for the hashes: a job does it at its first save, or before its first step
  // when a person has it go on from a checkpoint.
  const CorpusFingerprint& Fingerprint() const;

 private:
  struct Mapping {
    const uint8_t* data = nullptr;
    int64_t start = 0;  // of this file in the corpus
  };
  Corpus() = default;
  void MakeFingerprint() const;

  std::string LookAtFiles() const;

  std::vector<File> files_;
  std::string identity_;
  std::vector<Mapping> mappings_;
  int64_t num_bytes_ = 0;
  int64_t num_train_bytes_ = 0;
  mutable std::once_flag fingerprint_made_;
  mutable CorpusFingerprint fingerprint_;
};

}  // namespace trainyard
