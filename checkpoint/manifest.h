// The manifest of a checkpoint: what it holds, where each piece lies, and by which hashes it proves itself. The text
// form, manifest.json, is specified in docs/checkpoint-format.md. Values; no threads, no files.
//
//   std::string text = ManifestText(manifest);            // with its own hash inside
//   ASSIGN_OR_RETURN(Manifest read, ParseManifest(text)); // the hash is checked first
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// What is written; 1 is read too, which lacks `nonfinite` and `data.list`.
inline constexpr int kManifestVersion = 2;
inline constexpr char kManifestName[] = "manifest.json";
// Of parameters rounded to a narrower type, beside the parameters: for other programs, nothing goes on from them.
inline constexpr char kCopyRole[] = "copy";

struct ManifestFile {
  std::string name = {};  // in the checkpoint's folder, without '/'
  uint64_t bytes = 0;
  std::string hash = {};  // of the whole file, as HashHex
};

// A part of a logical tensor: a box in the global tensor, and of that box, in row-major order, the elements
// [first_element, last_element). They lie one after another in `file`.
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
  std::string role = {};  // "parameter", "exp_avg", "exp_avg_sq", kCopyRole
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  std::vector<ManifestPiece> pieces = {};
};

// A file of the data, as it was when the checkpoint was made.
struct ManifestDataFile {
  std::string path;
  uint64_t bytes = 0;
  std::string hash;
};

// What the run had been trained on, to tell whether a resumed one sees the same.
struct ManifestData {
  uint64_t consumed_samples = 0;
  uint64_t epoch = 0;
  uint64_t num_files = 0;
  uint64_t num_bytes = 0;
  std::string files_hash;
  std::string content_hash;
  // In the order in which they are read. Empty where there are more than kDataFilesListed.
  std::vector<ManifestDataFile> list = {};
};

// Enough to name the file that differs, without manifests of megabytes.
inline constexpr size_t kDataFilesListed = 4096;
// Names of tensors that are told in `nonfinite`.
inline constexpr size_t kNonfiniteListed = 16;

struct Manifest {
  std::string job_id;
  std::string job_name;
  uint64_t step = 0;
  uint64_t generation = 0;
  std::string spec;  // bytes of the resolved JobSpec
  std::string spec_digest;
  uint64_t seed = 0;  // all randomness follows from it, step and micro-batch: there is no state to keep
  uint64_t optimizer_updates = 0;
  // The loss scaler of fp16: its scale, good steps in a row, overflows it still stands. Scale 0: losses are not scaled.
  struct LossScale {
    double scale = 0;
    uint64_t good_steps = 0;
    uint64_t hysteresis_left = 0;
  } loss_scale;
  ManifestData data;
  std::string strategy;  // a word of parallel.data
  uint64_t world_size = 0;
  std::vector<std::vector<std::string>> bucket_order;
  // Tensors with a value that is infinite or not a number, "parameter 'wte.weight'", the first of them. Such a
  // checkpoint is kept for a person to look at; no run goes on from it by itself.
  std::vector<std::string> nonfinite;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;
};

// Whether the content contradicts itself: a piece outside its tensor or file, an element in no piece or in two.
// Possible errors: DataLoss.
absl::Status CheckManifest(const Manifest& manifest);

// Ends with a line feed. Two calls give the same text.
std::string ManifestText(const Manifest& manifest);
// The hash inside a manifest's text, as it was recorded. Empty: there is none.
std::string ManifestHash(absl::string_view text);

// Possible errors: DataLoss when the hash does not cover the text, a key is missing, unknown or of the wrong type, or
// the content contradicts itself (a piece outside its tensor, tensors not covered once); Unimplemented for a later
// version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace trainyard
