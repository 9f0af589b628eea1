#include "client/local_checks.h"

#include <errno.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/adapter_files.h"
#include "client/text.h"
#include "common/files.h"
#include "common/plural.h"
#include "models/adapter_config.h"
#include "spec/data_rules.h"
#include "spec/job_layout.h"
#include "spec/memory_plan.h"
#include "spec/model_sizes.h"
#include "spec/precision_rules.h"
#include "spec/validate.h"

namespace trainyard::client {
namespace {

namespace fs = std::filesystem;

// Adds up the sizes of data files until `enough_bytes` are found, and finds files that cannot be read.
class TextSurvey {
 public:
  explicit TextSurvey(uint64_t enough_bytes) : enough_bytes_(enough_bytes) {}

  uint64_t bytes() const { return bytes_; }

  // The problem of one entry of a list of files in train.data; empty: none.
  std::string CheckEntry(const std::string& entry) {
    struct stat st;
    if (stat(entry.c_str(), &st) == 0) return CheckPath(entry, st, /*is_entry=*/true);
    if (errno != ENOENT) return absl::StrCat(entry, " cannot be read: ", strerror(errno));
    if (entry.find_first_of("*?[") == std::string::npos) return absl::StrCat(entry, " does not exist");
    glob_t matches = {};
    int result = glob(entry.c_str(), 0, nullptr, &matches);
    std::string problem;
    if (result == GLOB_NOMATCH) problem = absl::StrCat(entry, " matches no file");
    if (result != 0 && result != GLOB_NOMATCH) problem = absl::StrCat(entry, " cannot be expanded");
    for (size_t i = 0; i < matches.gl_pathc && problem.empty() && bytes_ < enough_bytes_; ++i) {
      if (stat(matches.gl_pathv[i], &st) == 0) problem = CheckPath(matches.gl_pathv[i], st, /*is_entry=*/false);
    }
    globfree(&matches);
    return problem;
  }

 private:
  // The problem of a path that is an entry itself or (`is_entry` false) matches a pattern. A match may be empty.
  std::string CheckPath(const std::string& path, const struct stat& st, bool is_entry) {
    if (access(path.c_str(), R_OK) != 0) return absl::StrCat(path, " cannot be read: ", strerror(errno));
    if (S_ISREG(st.st_mode)) {
      bytes_ += static_cast<uint64_t>(st.st_size);
      return is_entry && st.st_size == 0 ? absl::StrCat(path, " is empty") : "";
    }
    if (!S_ISDIR(st.st_mode)) return absl::StrCat(path, " is neither a file nor a folder");
    const uint64_t before = bytes_;
    std::error_code error;
    fs::recursive_directory_iterator it(path, error), end;
    for (; !error && it != end && bytes_ < enough_bytes_; it.increment(error)) {
      std::error_code ignored;
      if (it->is_regular_file(ignored)) bytes_ += it->file_size(ignored);
      if (it->is_symlink(ignored) && it->is_directory(ignored)) {
        return absl::StrCat(it->path().string(),
                            " is a link to a folder, which is not followed; name its target, or remove the link");
      }
    }
    if (error) return absl::StrCat(path, " cannot be read: ", error.message());
    return bytes_ == before && bytes_ < enough_bytes_ ? absl::StrCat(path, " contains no text") : "";
  }

  const uint64_t enough_bytes_;
  uint64_t bytes_ = 0;
};

// The held-out files must be readable, and hold a sample if samples are made of bytes.
void CheckHeldOut(const v1::JobSpec& spec, uint64_t sample, const Positions& positions, Problems* problems) {
  constexpr char kKey[] = "train.data.held_out";
  if (spec.train().evaluate().every_steps() == 0) return;
  TextSurvey survey(sample);
  for (const std::string& entry : spec.train().data().held_out()) {
    if (std::string problem = survey.CheckEntry(entry); !problem.empty()) {
      return problems->AddError(positions, kKey, problem);
    }
  }
  const bool is_bytes = spec.train().data().text_size() > 0 && TokenizerPathOf(spec.train()).empty();
  if (!is_bytes || survey.bytes() >= sample) return;
  problems->AddError(positions, kKey,
                     absl::StrCat("has ", survey.bytes(), " bytes, but a sequence needs ", sample,
                                  " (train.batch.length + 1). Add text or reduce train.batch.length"));
}

}  // namespace

void CheckText(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  const v1::Data& data = spec.train().data();
  const uint64_t sample = static_cast<uint64_t>(DecidedLength(spec.train())) + 1;
  const bool has_held_out = data.held_out_size() > 0;
  const double validation = has_held_out ? 0 : data.has_validation() ? data.validation() : 0.05;
  const bool evaluates = spec.train().evaluate().every_steps() > 0 && validation > 0;
  // The training part and the validation part must each contain a sample; the 2 covers the rounding of the split.
  double enough_bytes = static_cast<double>(sample) / (1 - validation) + 2;
  if (evaluates) enough_bytes = std::max(enough_bytes, static_cast<double>(sample) / validation + 2);
  TextSurvey survey(static_cast<uint64_t>(enough_bytes) + 1);
  bool all_readable = true;
  const auto check = [&](const auto& entries, absl::string_view key) {
    for (const std::string& entry : entries) {
      std::string problem = survey.CheckEntry(entry);
      if (problem.empty()) continue;
      all_readable = false;
      problems->AddError(positions, key, problem);
    }
  };
  check(data.text(), "train.data.text");
  check(data.jsonl(), "train.data.jsonl");
  check(data.tokens(), "train.data.tokens");
  check(data.csv(), "train.data.csv");
  if (has_held_out) CheckHeldOut(spec, sample, positions, problems);
  // How many tokens the files become is known only when they are tokenized.
  if (!all_readable || data.text_size() == 0 || !TokenizerPathOf(spec.train()).empty()) return;
  const auto bytes = static_cast<double>(survey.bytes());
  if (bytes * (1 - validation) < static_cast<double>(sample)) {
    problems->AddError(
        positions, "train.data.text",
        absl::StrCat("has ", survey.bytes(), " bytes, of which ", static_cast<uint64_t>(bytes * (1 - validation)),
                     " are for training, but a sequence needs ", sample,
                     " (train.batch.length + 1). Add text or reduce train.batch.length"));
  } else if (evaluates && bytes * validation < static_cast<double>(sample)) {
    problems->AddError(
        positions, "train.data.validation",
        absl::StrCat(
            "leaves ", static_cast<uint64_t>(bytes * validation), " of ", survey.bytes(),
            " bytes for evaluation, but a sequence needs ", sample,
            " (train.batch.length + 1). Add text, increase this share, or set train.evaluate.every_steps to 0"));
  }
}

void CheckInitialWeights(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  const std::string& adapter = spec.train().lora().path();
  if (!adapter.empty() && fs::exists(JoinPath(adapter, kAdapterConfigName)) &&
      !fs::exists(JoinPath(adapter, kAdapterWeightsName))) {
    problems->AddError(positions, "train.lora.path", absl::StrCat(adapter, " has no ", kAdapterWeightsName));
  }
  const std::string& path = spec.train().model().init_from();
  if (path.empty()) return;
  struct stat st;
  std::string problem;
  if (stat(path.c_str(), &st) != 0) {
    problem = errno == ENOENT ? " does not exist" : absl::StrCat(" cannot be read: ", strerror(errno));
  } else if (access(path.c_str(), R_OK) != 0) {
    problem = absl::StrCat(" cannot be read: ", strerror(errno));
  } else if (S_ISREG(st.st_mode)) {
    char begin[9] = {};
    std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
    if (begin[8] != '{') {
      problem = " is not a safetensors file: such a file begins with the length of its header in 8 bytes and a '{'";
    }
  } else if (!S_ISDIR(st.st_mode)) {
    problem = " is neither a safetensors file nor a folder";
  } else if (!fs::exists(path + "/manifest.json") && !fs::exists(path + "/config.json")) {
    problem = " has neither a checkpoint (manifest.json) nor a model of transformers (config.json)";
  }
  if (!problem.empty()) problems->AddError(positions, "train.model.init_from", absl::StrCat(path, problem));
}

void CheckMemory(const v1::JobSpec& spec, uint64_t machine_bytes, const Positions& positions, Problems* problems) {
  if (machine_bytes == 0) return;
  const uint64_t ranks = spec.resources().has_ranks() ? spec.resources().ranks() : 1;
  v1::JobSpec resolved = spec;
  resolved.mutable_resources()->set_ranks(static_cast<uint32_t>(ranks));
  *resolved.mutable_train()->mutable_precision() = ResolvedPrecision(spec.train().precision());
  // On GPUs, only offloaded state is in the memory of the machine. Theirs is not known here.
  const bool is_cuda = spec.resources().device() == v1::DEVICE_CUDA;
  // Counts only what exists all the time; for what exists only during a step, the plan may be higher than the need.
  double bytes = 0;
  for (const MemoryPlan& plan : PlanMemoryOfStages(resolved)) {
    const uint64_t on_device = is_cuda ? 0 : plan.parameters + plan.gradients + plan.optimizer;
    bytes += static_cast<double>(LayoutOf(resolved).stage_ranks()) * static_cast<double>(on_device + plan.host);
  }
  if (bytes <= static_cast<double>(machine_bytes)) return;
  const char* const what = is_cuda ? "the offloaded state of " : "with gradients and optimizer state ";
  problems->AddError(
      positions, "train.model",
      absl::StrCat("has ", CountParameters(spec.train().model()), " parameters; ", what, Plural(ranks, "rank"),
                   is_cuda || ranks == 1 ? " needs " : " need ",
                   BytesText(static_cast<uint64_t>(std::min(bytes, 1e18))), ", but this machine has ",
                   BytesText(machine_bytes),
                   spec.resources().has_device() ? "" : "; if the ranks use GPUs, set resources.device: cuda"));
}

uint64_t MachineMemoryBytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : 0;
}

}  // namespace trainyard::client
