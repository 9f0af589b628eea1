// The manifest of a checkpoint: its tensors, where each piece of them is stored, and the hashes that detect damage. The
// text form, manifest.json, is specified in docs/checkpoint-format.md. Plain values; reads and writes no files.
//
//   std::string text = ManifestText(manifest);            // contains a hash of itself
//   ASSIGN_OR_RETURN(Manifest read, ParseManifest(text)); // the hash is checked first
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor_roles.h"

namespace trainyard {

// The newest version. Older versions are read, too: 1 has neither `nonfinite` nor `data.list`; 1 and 2 have no
// `evaluation`; 3 has no `evaluation.data_hash`; 4 has no `data.samples`.
inline constexpr int kManifestVersion = 5;
// The version that is written if there are no `data.samples`, so that older programs can read the checkpoint.
inline constexpr int kManifestVersionWithoutSamples = 4;
inline constexpr char kManifestName[] = "manifest.json";

struct ManifestFile {
  std::string name = {};  // in the checkpoint's folder, without '/'
  uint64_t bytes = 0;
  std::string hash = {};  // of the whole file, as HashHex returns it
};

// A piece of a tensor: elements [first_element, last_element), in row-major order, of a box of the tensor, stored one
// after another in `file`.
struct ManifestPiece {
  std::string file = {};
  std::vector<int64_t> start = {};
  std::vector<int64_t> size = {};
  uint64_t first_element = 0;
  uint64_t last_element = 0;
  uint64_t first_byte = 0;  // from the start of the file
  uint64_t last_byte = 0;
  std::string hash = {};
};

struct ManifestTensor {
  std::string name = {};  // of the parameter
  std::string role = {};  // see common/tensor_roles.h
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  std::vector<ManifestPiece> pieces = {};
};

// A file of training data, as it was when the checkpoint was made.
struct ManifestDataFile {
  std::string path;
  uint64_t bytes = 0;
  std::string hash;
};

// The data that the run was trained on, to detect whether a resumed run has the same data.
struct ManifestData {
  uint64_t consumed_samples = 0;
  uint64_t epoch = 0;
  uint64_t num_files = 0;
  uint64_t num_bytes = 0;
  std::string files_hash;  // of the paths and sizes
  // Of all bytes and, if there are rules that turn them into samples (Corpus::SetRules), of these rules. Empty: the
  // checkpoint was written without data (an import).
  std::string content_hash;
  // The number of training samples of each source, if hosts may have different data (train.data.uneven: join). The
  // order of the samples follows from it. Empty: it follows from the data.
  std::vector<int64_t> samples = {};
  // The files in the order in which they are read; empty if there are more than kDataFilesListed.
  std::vector<ManifestDataFile> list = {};
};

// What the evaluations up to the step have found. A resumed run continues from these values.
struct ManifestEvaluation {
  std::optional<double> loss = {};  // after this very step; none: it was not evaluated, or the loss is not finite
  uint64_t tokens = 0;              // targets with a loss in one evaluation; compare losses only if these are equal
  std::string data_hash = {};       // of the data of an evaluation; losses on other data are not comparable
  // The loss of the newest evaluation that improved: it was lower than the previous value of best_loss by more than
  // train.evaluate.min_delta. None: no loss was finite.
  std::optional<double> best_loss = {};
  uint64_t best_step = 0;
  uint64_t without_improvement = 0;  // evaluations in a row, as train.evaluate.patience counts them
  // With checkpoint.keep_best: the lowest loss of this checkpoint and of the older checkpoints of the run.
  std::optional<double> lowest_saved = {};
  bool operator==(const ManifestEvaluation&) const = default;
};

// The maximum number of files in `data.list`: enough to name the file that differs, without a manifest of megabytes.
inline constexpr size_t kDataFilesListed = 4096;
// The maximum number of names in `nonfinite`.
inline constexpr size_t kNonfiniteListed = 16;

struct Manifest {
  std::string job_id;
  std::string job_name;
  uint64_t step = 0;
  uint64_t generation = 0;
  std::string spec;  // bytes of the resolved JobSpec
  std::string spec_digest;
  // All random numbers follow from the seed, the step and the indices of samples and parameters, so the state of random
  // generators is not stored.
  uint64_t seed = 0;
  uint64_t optimizer_updates = 0;
  // The loss scaler of fp16: its scale, the number of finite steps in a row, and the number of overflows until the
  // scale is reduced. Scale 0: no loss scaling.
  struct LossScale {
    double scale = 0;
    uint64_t good_steps = 0;
    uint64_t hysteresis_left = 0;
  } loss_scale;
  ManifestData data;
  std::optional<ManifestEvaluation> evaluation;  // none: the run does not evaluate
  std::string strategy;                          // the value of parallel.data
  uint64_t world_size = 0;
  // The names of the parameters of each gradient bucket (of each unit, if parameters are sharded), in the order in
  // which these are reduced. If ranks hold different parts of the model, only those of rank 0.
  std::vector<std::vector<std::string>> bucket_order;
  // The first tensors with a value that is infinite or not a number, as "parameter 'wte.weight'". Such a checkpoint is
  // stored for the user to inspect; no run resumes from it automatically.
  std::vector<std::string> nonfinite;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

// Fails with DataLoss if the content contradicts itself: a piece outside its tensor or file, an element in no piece or
// in two.
absl::Status CheckManifest(const Manifest& manifest);

// The text ends with a line feed. Equal manifests have equal texts.
std::string ManifestText(const Manifest& manifest);
// Returns the hash recorded in a manifest's text; empty if there is none.
std::string ManifestHash(absl::string_view text);

// Fails with DataLoss if the text does not match its hash, if a key is missing, unknown or of the wrong type, and with
// the errors of CheckManifest; with Unimplemented for a later version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace trainyard
