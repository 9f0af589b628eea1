// The draft of a job that `trainctl config` asks about: the keys from --answers and --set, the answers so far, and
// defaults for the rest. Once every question has an answer or a default, the whole job is checked as by `trainctl
// validate`.
//
//   Draft draft = MakeDraft(input, facts, answers);
//   draft.questions   // those that the command line does not answer, each with its default for these answers
//
// Reads the files that the job names, for the checks; no other effects. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "client/config_files.h"
#include "common/problems.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

// What is known before the first question.
struct ConfigFacts {
  FoundFiles found;
  uint32_t cores = 1;
  uint32_t gpus = 0;
  uint32_t gpu_compute_major = 0;
  uint64_t memory_bytes = 0;  // of this machine; 0: unknown
  // The job runs on other machines, so that missing files and too little memory on this machine cause only warnings.
  bool elsewhere = false;
  bool accelerate = false;        // the command writes a file for Accelerate, not a job file
  std::string working_directory;  // relative paths are resolved against it
};

// What the command line gives.
struct ConfigInput {
  std::string text;                    // of --answers: a job file that may be incomplete
  std::string file_name;               // its name, for messages
  std::vector<std::string> overrides;  // of --set
};

// The text of an answer by the id of its question.
using ConfigAnswers = std::map<std::string, std::string>;

// A question that concerns this draft.
struct AskedQuestion {
  std::string id;
  std::vector<std::string> keys;  // keys of the job that the answer sets
  std::string text;               // one sentence
  std::string help;               // what the answer changes, and which answers are possible
  std::string suggestion;         // the answer that an empty line gives; empty: there is none
};

struct Draft {
  v1::JobSpec spec;                             // as it is written: without sizes from a preset or a folder
  std::vector<AskedQuestion> questions;         // in order, without those that the command line answers
  std::vector<std::string> unanswered;          // ids of questions that have neither an answer nor a default
  Problems problems;                            // of the whole job; see ConfigFacts::elsewhere
  std::map<std::string, std::string> comments;  // by key of the job
};

Draft MakeDraft(const ConfigInput& input, const ConfigFacts& facts, const ConfigAnswers& answers);

// The id of the question of `draft` that can correct a problem with `key`: the one with a key that begins with the most
// equal parts. Empty: none.
std::string OwnerOf(const Draft& draft, absl::string_view key);

// Splits a command line as a shell does, with quotes and backslashes, without expansions. Pure.
// Possible errors: InvalidArgument: a quote is not closed.
absl::StatusOr<std::vector<std::string>> SplitCommand(absl::string_view text);

// Whether Accelerate's file has a key for this key of the job.
bool AccelerateHasKey(absl::string_view key);

}  // namespace trainyard::client
