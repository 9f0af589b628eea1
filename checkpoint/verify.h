// Verifies a checkpoint and returns every problem, not only the first. Checkpoint::Open uses it, and `trainctl
// checkpoint verify` prints the problems. The bytes are read, not mapped, so that a file which shrinks meanwhile is
// reported as a problem and causes no SIGBUS. Stateless and thread-safe; one call uses several threads, one per file at
// a time.
//
//   ASSIGN_OR_RETURN(VerifiedCheckpoint verified, VerifyCheckpoint(path, {}));
//   for (const CheckpointProblem& problem : verified.problems) puts(problem.Text(path).c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/manifest.h"

namespace trainyard {

struct CheckpointProblem {
  std::string file = {};    // in the checkpoint's folder; empty: the folder itself
  std::string tensor = {};  // "parameter 'wte.weight'"; empty: not in one tensor
  std::string expected = {};
  std::string found = {};
  // Why the file or the folder could not be read; IsFailedRead (read_error.h) holds for it. OK: the problem is damage.
  absl::Status failed_read = absl::OkStatus();

  // "<path>/shard-00000.safetensors, parameter 'wte.weight': expected hash 1f.., found hash 2e..".
  std::string Text(absl::string_view path) const;
};

struct VerifyOptions {
  // 0: one per core, at most 8. Never more than there are files.
  int threads = 0;
  // Called with the number of bytes that the calling thread has just read and hashed. Several threads call it at once.
  std::function<void(uint64_t bytes)> on_bytes = nullptr;
};

struct VerifiedCheckpoint {
  std::optional<Manifest> manifest;  // none: the manifest itself is missing or damaged
  std::string manifest_hash;         // empty if `manifest` is none
  uint64_t size_bytes = 0;           // of the manifest and the files that it lists; 0: the manifest was not read
  std::vector<CheckpointProblem> problems;
};

// Checks the manifest, the names in the folder, the lengths, and the hash of every file and piece. Fails with NotFound
// if there is no such folder, with Unimplemented for a later version, and with a failed read (read_error.h) if the
// manifest cannot be read. Everything else that is wrong is a problem.
absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(const std::string& path, const VerifyOptions& options);

// Checks only manifest, names and lengths.
absl::StatusOr<VerifiedCheckpoint> QuickVerifyCheckpoint(const std::string& path);

// Returns the first failed read if it is unknown whether the checkpoint is damaged, because reads failed and nothing
// else is wrong. OK: this is known, because something is damaged or nothing is wrong.
absl::Status FailedReadOf(const std::vector<CheckpointProblem>& problems);
absl::Status FailedReadOf(const absl::StatusOr<VerifiedCheckpoint>& verified);

// Like VerifyCheckpoint and QuickVerifyCheckpoint, for a caller that has already read the manifest.
std::vector<CheckpointProblem> VerifyFiles(const std::string& path, const Manifest& manifest,
                                           const VerifyOptions& options);
std::vector<CheckpointProblem> QuickVerifyFiles(const std::string& path, const Manifest& manifest);
// Checks the hashes of one listed file and of its pieces.
std::vector<CheckpointProblem> VerifyFile(const std::string& path, const Manifest& manifest,
                                          const ManifestFile& listed);

}  // namespace trainyard
