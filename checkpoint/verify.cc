#include "checkpoint/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/read_error.h"
#include "checkpoint/safetensors.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr unsigned kThreadsMax = 8;
// The number of bytes that are read and hashed at a time: large enough for the disk, small enough to be in the cache
// for the second hash.
constexpr size_t kReadChunkBytes = 512 << 10;

// A piece, and the hash of its bytes so far.
struct PieceCheck {
  const ManifestTensor* tensor;
  const ManifestPiece* piece;
  std::unique_ptr<Hasher> hasher;
};

std::string NameOf(const ManifestTensor& tensor) { return absl::StrCat(tensor.role, " '", tensor.name, "'"); }

// Returns the pieces in `file`, ordered by their first byte.
std::vector<PieceCheck> PiecesIn(const Manifest& manifest, absl::string_view file) {
  std::vector<PieceCheck> pieces;
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestPiece& piece : tensor.pieces) {
      if (piece.file == file) pieces.push_back({&tensor, &piece, nullptr});
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const PieceCheck& a, const PieceCheck& b) { return a.piece->first_byte < b.piece->first_byte; });
  return pieces;
}

// Adds the error of an attempt to read `file`.
void AddError(const std::string& file, absl::string_view expected, absl::Status error,
              std::vector<CheckpointProblem>& problems) {
  CheckpointProblem problem{.file = file, .expected = std::string(expected), .found = std::string(error.message())};
  error = MarkFailedRead(std::move(error));
  if (IsFailedRead(error)) problem.failed_read = std::move(error);
  problems.push_back(std::move(problem));
}

// Reads one file once, and hashes the whole file and every piece in one pass.
class FileCheck {
 public:
  FileCheck(const std::string& path, const Manifest& manifest, const ManifestFile& listed)
      : path_(JoinPath(path, listed.name)), listed_(listed), pieces_(PiecesIn(manifest, listed.name)) {}

  std::vector<CheckpointProblem> CheckLength() {
    struct stat st;
    if (stat(path_.c_str(), &st) != 0) {
      const absl::Status error = ErrnoStatus(errno, absl::StrCat("cannot inspect ", path_));
      if (absl::IsNotFound(error)) {
        Add("", absl::StrCat(listed_.bytes, " bytes"), "nothing: it is missing");
      } else {
        AddError(listed_.name, absl::StrCat(listed_.bytes, " bytes"), error, problems_);
      }
    } else if (!S_ISREG(st.st_mode)) {
      Add("", absl::StrCat("a file of ", listed_.bytes, " bytes"), "something that is not a file");
    } else if (static_cast<uint64_t>(st.st_size) != listed_.bytes) {
      Add("", absl::StrCat(listed_.bytes, " bytes"), absl::StrCat(st.st_size, " bytes"));
    }
    if (!absl::EndsWith(listed_.name, ".safetensors")) {
      for (const PieceCheck& check : pieces_)
        Add(NameOf(*check.tensor), "a .safetensors file", "a file of another kind");
    }
    return std::move(problems_);
  }

  // `reported`: CheckLength has found a problem, which is not reported again.
  std::vector<CheckpointProblem> CheckBytes(bool reported, const std::function<void(uint64_t)>& on_bytes) {
    const absl::StatusOr<int> opened = OpenRegularFile(path_, O_RDONLY);
    if (!opened.ok()) {
      if (!reported) AddError(listed_.name, "a readable file", opened.status(), problems_);
      return std::move(problems_);
    }
    const int fd = *opened;
    absl::Cleanup close_fd = [fd] { close(fd); };
    Hasher whole;
    uint64_t at = 0;
    if (!Hash(fd, whole, at, on_bytes)) return std::move(problems_);
    for (const PieceCheck& check : pieces_) {
      if (check.piece->last_byte > at) {
        Add(NameOf(*check.tensor), absl::StrCat("bytes [", check.piece->first_byte, ", ", check.piece->last_byte, ")"),
            absl::StrCat("the file ends at ", at));
        continue;
      }
      const std::string hash = check.hasher == nullptr ? HashHex("") : check.hasher->Hex();
      if (hash != check.piece->hash) AddHash(NameOf(*check.tensor), check.piece->hash, hash);
    }
    if (at != listed_.bytes) {
      if (!reported) Add("", absl::StrCat(listed_.bytes, " bytes"), absl::StrCat(at, " bytes"));
    } else if (const std::string hash = whole.Hex(); hash != listed_.hash) {
      AddHash("", listed_.hash, hash);
    } else if (problems_.empty() && absl::EndsWith(listed_.name, ".safetensors")) {
      const absl::Status header = CheckSafetensorsHeader(fd, path_, at);
      if (!header.ok()) AddError(listed_.name, "a safetensors file", header, problems_);
    }
    return std::move(problems_);
  }

 private:
  bool Hash(int fd, Hasher& whole, uint64_t& at, const std::function<void(uint64_t)>& on_bytes) {
    std::vector<char> buffer(kReadChunkBytes);
    size_t num_begun = 0;  // pieces_[0, num_begun) begin before `at`
    std::vector<PieceCheck*> open_pieces;
    while (true) {
      const ssize_t n = pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        const absl::Status error = ErrnoStatus(errno, absl::StrCat("cannot read ", path_, " at byte ", at));
        AddError(listed_.name, "a readable file", error, problems_);
      }
      if (n <= 0) return n == 0;
      const absl::string_view chunk(buffer.data(), static_cast<size_t>(n));
      whole.Add(chunk);
      const uint64_t end = at + chunk.size();
      for (; num_begun < pieces_.size() && pieces_[num_begun].piece->first_byte < end; ++num_begun) {
        pieces_[num_begun].hasher = std::make_unique<Hasher>();
        open_pieces.push_back(&pieces_[num_begun]);
      }
      for (PieceCheck* check : open_pieces) {
        const uint64_t first = std::max(check->piece->first_byte, at), last = std::min(check->piece->last_byte, end);
        if (first < last) check->hasher->Add(chunk.substr(first - at, last - first));
      }
      std::erase_if(open_pieces, [&](const PieceCheck* check) { return check->piece->last_byte <= end; });
      at = end;
      if (on_bytes != nullptr) on_bytes(chunk.size());
    }
  }

  void Add(std::string tensor, std::string expected, std::string found) {
    problems_.push_back({.file = listed_.name,
                         .tensor = std::move(tensor),
                         .expected = std::move(expected),
                         .found = std::move(found)});
  }
  void AddHash(std::string tensor, absl::string_view expected, absl::string_view found) {
    Add(std::move(tensor), absl::StrCat("hash ", expected), absl::StrCat("hash ", found));
  }

  const std::string path_;
  const ManifestFile& listed_;
  std::vector<PieceCheck> pieces_;
  std::vector<CheckpointProblem> problems_;
};

// The folder may hold only the manifest and the files it lists, because a program that added a file may have changed
// others.
std::vector<CheckpointProblem> CheckNames(const std::string& path, const Manifest& manifest) {
  std::set<std::string> listed = {kManifestName};
  for (const ManifestFile& file : manifest.files) listed.insert(file.name);
  std::vector<CheckpointProblem> problems;
  std::error_code error;
  std::filesystem::directory_iterator it(path, error), end;
  while (!error && it != end) {
    std::string name = it->path().filename().string();
    // ".nfs...": a file that was removed while a process of this host still has it open.
    if (!listed.contains(name) && !absl::StartsWith(name, ".nfs")) {
      problems.push_back(
          {.file = name, .expected = "only what the manifest lists", .found = "a file that it does not list"});
    }
    it.increment(error);
  }
  if (error) {
    AddError(/*file=*/"", "a folder that can be listed", ErrnoStatus(error.value(), absl::StrCat("cannot list ", path)),
             problems);
  }
  std::sort(problems.begin(), problems.end(),
            [](const CheckpointProblem& a, const CheckpointProblem& b) { return a.file < b.file; });
  return problems;
}

void Append(std::vector<CheckpointProblem> more, std::vector<CheckpointProblem>& problems) {
  std::move(more.begin(), more.end(), std::back_inserter(problems));
}

absl::StatusOr<VerifiedCheckpoint> ReadManifestOf(const std::string& path) {
  VerifiedCheckpoint verified;
  absl::StatusOr<std::string> text = ReadManifestText(path);
  if (absl::IsFailedPrecondition(text.status()) || absl::IsDataLoss(text.status())) {
    verified.problems.push_back(
        {.file = kManifestName, .expected = "a manifest", .found = std::string(text.status().message())});
    return verified;
  }
  if (absl::IsNotFound(text.status())) {
    struct stat folder;
    if (stat(path.c_str(), &folder) != 0) {
      absl::Status error = ErrnoStatus(errno, absl::StrCat("cannot inspect ", path));
      return absl::IsNotFound(error) ? text.status() : MarkFailedRead(std::move(error));
    }
    verified.problems.push_back({.file = kManifestName, .expected = "a manifest", .found = "nothing: it is missing"});
    return verified;
  }
  RETURN_IF_ERROR(MarkFailedRead(text.status()));
  absl::StatusOr<Manifest> manifest = ParseManifest(*text);
  if (absl::IsUnimplemented(manifest.status())) {
    return absl::UnimplementedError(absl::StrCat(path, ": ", manifest.status().message()));
  }
  verified.size_bytes = text->size();
  if (!manifest.ok()) {
    verified.problems.push_back({.file = kManifestName,
                                 .expected = "a manifest that matches its hash",
                                 .found = std::string(manifest.status().message())});
    return verified;
  }
  verified.manifest = *std::move(manifest);
  verified.manifest_hash = ManifestHash(*text);
  for (const ManifestFile& file : verified.manifest->files) verified.size_bytes += file.bytes;
  return verified;
}

}  // namespace

std::string CheckpointProblem::Text(absl::string_view path) const {
  if (!failed_read.ok()) return std::string(failed_read.message());
  return absl::StrCat(file.empty() ? std::string(path) : JoinPath(path, file), tensor.empty() ? "" : ", ", tensor,
                      ": expected ", expected, ", found ", found);
}

absl::Status FailedReadOf(const std::vector<CheckpointProblem>& problems) {
  const auto is_damage = [](const CheckpointProblem& problem) { return problem.failed_read.ok(); };
  if (problems.empty() || std::any_of(problems.begin(), problems.end(), is_damage)) return absl::OkStatus();
  return problems[0].failed_read;
}

absl::Status FailedReadOf(const absl::StatusOr<VerifiedCheckpoint>& verified) {
  if (verified.ok()) return FailedReadOf(verified->problems);
  return IsFailedRead(verified.status()) ? verified.status() : absl::OkStatus();
}

std::vector<CheckpointProblem> QuickVerifyFiles(const std::string& path, const Manifest& manifest) {
  std::vector<CheckpointProblem> problems = CheckNames(path, manifest);
  for (const ManifestFile& file : manifest.files) Append(FileCheck(path, manifest, file).CheckLength(), problems);
  return problems;
}

std::vector<CheckpointProblem> VerifyFile(const std::string& path, const Manifest& manifest,
                                          const ManifestFile& listed) {
  return FileCheck(path, manifest, listed).CheckBytes(/*reported=*/false, nullptr);
}

std::vector<CheckpointProblem> VerifyFiles(const std::string& path, const Manifest& manifest,
                                           const VerifyOptions& options) {
  std::vector<CheckpointProblem> problems = QuickVerifyFiles(path, manifest);
  std::set<std::string> reported;  // the names of files
  for (const CheckpointProblem& problem : problems) reported.insert(problem.file);
  const size_t files = manifest.files.size();
  std::vector<std::vector<CheckpointProblem>> found(files);
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < files;) {
      const ManifestFile& file = manifest.files[i];
      found[i] = FileCheck(path, manifest, file).CheckBytes(reported.contains(file.name), options.on_bytes);
    }
  };
  const unsigned wanted = options.threads > 0 ? static_cast<unsigned>(options.threads)
                                              : std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  {
    std::vector<std::jthread> helpers;  // joined at the end of this block
    for (size_t i = 1; i < std::min<size_t>(wanted, files); ++i) helpers.emplace_back(work);
    work();
  }
  for (std::vector<CheckpointProblem>& each : found) Append(std::move(each), problems);
  return problems;
}

absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(const std::string& path, const VerifyOptions& options) {
  ASSIGN_OR_RETURN(VerifiedCheckpoint verified, ReadManifestOf(path));
  if (verified.manifest.has_value()) verified.problems = VerifyFiles(path, *verified.manifest, options);
  return verified;
}

absl::StatusOr<VerifiedCheckpoint> QuickVerifyCheckpoint(const std::string& path) {
  ASSIGN_OR_RETURN(VerifiedCheckpoint verified, ReadManifestOf(path));
  if (verified.manifest.has_value()) verified.problems = QuickVerifyFiles(path, *verified.manifest);
  return verified;
}

}  // namespace trainyard
