// Verifies a checkpoint and tells everything that is wrong with it, not only the first thing: what a reader opens
// through and what `trainctl checkpoint verify` prints. Files are read, never mapped, so that one which shrinks
// meanwhile is a problem told and no signal. Keeps no state; one call uses several threads, one a file at a time.
//
//   ASSIGN_OR_RETURN(VerifiedCheckpoint verified, VerifyCheckpoint(path, {}));
//   for (const CheckpointProblem& problem : verified.problems) puts(problem.Text(path).c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/manifest.h"

namespace trainyard {

struct CheckpointProblem {
  std::string file = {};    // in the checkpoint's folder; empty: the folder itself
  std::string tensor = {};  // "parameter 'wte.weight'"; empty: not of one tensor
  std::string expected = {};
  std::string found = {};

  // "<path>/shard-00000.safetensors, parameter 'wte.weight': expected hash 1f.., found hash 2e..".
  std::string Text(absl::string_view path) const;
};

struct VerifyOptions {
  // 0: one a core, at most 8; never more than there are files.
  int threads = 0;
  // So many more bytes have been hashed. Called from any of the threads, and from several at once.
  std::function<void(uint64_t bytes)> on_bytes = nullptr;
};

struct VerifiedCheckpoint {
  std::optional<Manifest> manifest;  // none: the manifest itself is not to be trusted
  std::string manifest_hash;         // empty then
  uint64_t size_bytes = 0;           // of all files, as the manifest lists them
  std::vector<CheckpointProblem> problems;
};

// Manifest, names in the folder, lengths, and the hash of every file and piece. Possible errors: NotFound: there is no
// such folder; PermissionDenied; Unimplemented: of a later version. Whatever else is wrong is a problem.
absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(const std::string& path, const VerifyOptions& options);

// The same without the hashes of the files: manifest, names and lengths.
absl::StatusOr<VerifiedCheckpoint> LookAtCheckpoint(const std::string& path);

// What they do once they have the manifest.
std::vector<CheckpointProblem> VerifyFiles(const std::string& path, const Manifest& manifest,
                                           const VerifyOptions& options);
std::vector<CheckpointProblem> LookAtFiles(const std::string& path, const Manifest& manifest);
// Of one file that the manifest lists: the hashes of the whole and of its pieces.
std::vector<CheckpointProblem> VerifyFile(const std::string& path, const Manifest& manifest,
                                          const ManifestFile& listed);

}  // namespace trainyard
