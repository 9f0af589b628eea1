#include "client/config_questions.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/strict_yaml.h"
#include "spec/presets.h"
#include "spec/validate.h"

namespace trainyard::client {
namespace {

using Context = QuestionContext;

constexpr uint64_t kDefaultSteps = 1000;
constexpr uint64_t kDefaultBatch = 8;
constexpr uint32_t kAmpere = 8;  // the compute capability from which GPUs compute in bf16
constexpr size_t kJobNameMax = 63;

bool IsModel(const Context& c) { return !c.is_script && !c.facts.accelerate; }
bool IsScript(const Context& c) { return c.is_script && !c.facts.accelerate; }
bool IsAccelerate(const Context& c) { return c.facts.accelerate; }
bool IsJob(const Context& c) { return !c.facts.accelerate; }
bool DecidesStrategy(const Context& c) { return !IsScript(c); }
bool IsScriptElsewhere(const Context& c) { return IsScript(c) && c.facts.elsewhere; }
uint64_t Ranks(const Context& c) { return std::max<uint64_t>(1, c.spec.resources().ranks()); }

// Accelerate offloads what it shards: FSDP and ZeRO 3 everything, ZeRO 1 and 2 only the optimizer state.
bool OffersOffload(const Context& c) {
  return IsAccelerate(c) && c.spec.parallel().data() != v1::DATA_PARALLEL_UNSPECIFIED &&
         c.spec.parallel().data() != v1::DATA_PARALLEL_DDP;
}
bool OffersRecompute(const Context& c) {
  return IsAccelerate(c) ? c.spec.parallel().data() == v1::DATA_PARALLEL_FSDP : IsModel(c);
}

absl::StatusOr<YamlSettings> Plain(const char* key, const std::string& answer) { return YamlSettings{{key, answer}}; }

absl::StatusOr<bool> YesOrNo(const std::string& answer) {
  const std::string lower = absl::AsciiStrToLower(answer);
  if (lower == "yes" || lower == "y" || lower == "true") return true;
  if (lower == "no" || lower == "n" || lower == "false") return false;
  return absl::InvalidArgumentError(absl::StrCat("expected yes or no, found ", answer));
}

std::string SuggestedScript(const Context& c) {
  const std::vector<std::string>& scripts = c.facts.found.scripts;
  for (const char* usual : {"train.py", "main.py"}) {
    if (std::find(scripts.begin(), scripts.end(), usual) != scripts.end()) return usual;
  }
  return scripts.size() == 1 ? scripts.front() : "";
}

absl::StatusOr<YamlSettings> ScriptSettings(const std::string& answer, const Context& c) {
  absl::StatusOr<std::vector<std::string>> words = SplitCommand(answer);
  if (!words.ok()) return words.status();
  if (words->empty()) return absl::InvalidArgumentError("expected a script or a program");
  if (absl::EndsWith(words->front(), ".py")) words->insert(words->begin(), "python3");
  for (std::string& word : *words) word = QuotedYaml(word);
  return YamlSettings{{"command.argv", absl::StrCat("[", absl::StrJoin(*words, ", "), "]")},
                      {"command.workdir", QuotedYaml(c.facts.working_directory)}};
}

std::string SuggestedModel(const Context& c) {
  return c.facts.found.models.empty() ? "lab-tiny" : absl::StrCat("./", c.facts.found.models.front());
}

absl::StatusOr<YamlSettings> ModelSettings(const std::string& answer, const Context&) {
  const std::vector<std::string> presets = PresetNames();
  const bool is_preset = std::find(presets.begin(), presets.end(), answer) != presets.end();
  const bool is_path = !is_preset && (absl::StrContains(answer, '/') || FileExists(answer));
  return YamlSettings{{is_path ? "train.model.path" : "train.model.preset", QuotedYaml(answer)}};
}

absl::string_view KindOfData(absl::string_view path) {
  if (absl::EndsWith(path, ".jsonl")) return "jsonl";
  if (absl::EndsWith(path, ".bin")) return "tokens";
  return absl::EndsWith(path, ".csv") ? "csv" : "text";
}

// Suggests the files of the first kind that was found, because files of different kinds cannot be mixed.
std::string SuggestedData(const Context& c) {
  std::vector<std::string> same;
  for (absl::string_view kind : {"jsonl", "text", "tokens", "csv"}) {
    for (const std::string& path : c.facts.found.data) {
      if (KindOfData(path) == kind && !absl::StrContains(path, ' ')) same.push_back(path);
    }
    if (!same.empty()) break;
  }
  return absl::StrJoin(same, " ");
}

absl::StatusOr<YamlSettings> DataSettings(const std::string& answer, const Context&) {
  absl::StatusOr<std::vector<std::string>> paths = SplitCommand(answer);
  if (!paths.ok()) return paths.status();
  if (paths->empty()) return absl::InvalidArgumentError("expected at least one file, folder or glob");
  const absl::string_view kind = KindOfData(paths->front());
  for (std::string& path : *paths) {
    if (KindOfData(path) != kind) {
      return absl::InvalidArgumentError(absl::StrCat("expected files of one kind, found ", kind, " first, then ", path,
                                                     ", which is ", KindOfData(path)));
    }
    path = QuotedYaml(path);
  }
  return YamlSettings{{absl::StrCat("train.data.", kind), absl::StrCat("[", absl::StrJoin(*paths, ", "), "]")}};
}

std::string SuggestedRanks(const Context& c) {
  if (c.facts.gpus > 0) return absl::StrCat(c.facts.gpus);
  return absl::StrCat(std::min(2u, std::max(1u, c.facts.cores)));
}

absl::StatusOr<YamlSettings> DeviceSettings(const std::string& answer, const Context& c) {
  if (answer == "cpu") return YamlSettings{{"resources.device", "cpu"}};
  if (answer != "gpu" && answer != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("expected cpu or gpu, found ", answer));
  }
  // Of the values of Accelerate's distributed_type, only MULTI_GPU (ddp on several ranks) requires GPUs.
  const bool names_gpus = Ranks(c) > 1 && c.spec.parallel().data() == v1::DATA_PARALLEL_DDP;
  return YamlSettings{{"resources.device", names_gpus ? "cuda" : "auto"}};
}

absl::StatusOr<YamlSettings> StrategySettings(const std::string& answer, const Context& c) {
  if (c.facts.accelerate && answer == "hsdp") {
    return absl::InvalidArgumentError("trainctl config writes no keys of Accelerate for hsdp; choose fsdp");
  }
  return YamlSettings{{"parallel.data", answer}};
}

std::string SuggestedPrecision(const Context& c) {
  return c.facts.gpus > 0 && c.facts.gpu_compute_major >= kAmpere ? "bf16" : "fp32";
}

absl::StatusOr<YamlSettings> OffloadSettings(const std::string& answer, const Context& c) {
  const absl::StatusOr<bool> is_on = YesOrNo(answer);
  if (!is_on.ok()) return is_on.status();
  const v1::DataParallel data = c.spec.parallel().data();
  const bool only_optimizer = data == v1::DATA_PARALLEL_ZERO1 || data == v1::DATA_PARALLEL_ZERO2;
  return YamlSettings{{"parallel.offload.optimizer", *is_on ? "true" : "false"},
                      {"parallel.offload.parameters", *is_on && !only_optimizer ? "true" : "false"}};
}

absl::StatusOr<YamlSettings> RecomputeSettings(const std::string& answer, const Context&) {
  const absl::StatusOr<bool> is_on = YesOrNo(answer);
  if (!is_on.ok()) return is_on.status();
  return YamlSettings{{"parallel.recompute.mode", *is_on ? "blocks" : "none"}};
}

std::string SuggestedBatch(const Context& c) {
  const uint64_t ranks = Ranks(c);
  return absl::StrCat((kDefaultBatch + ranks - 1) / ranks * ranks);
}

// A tenth of the steps.
std::string SuggestedInterval(const Context& c) {
  return absl::StrCat(std::max<uint64_t>(1, c.spec.train().steps() / 10));
}

absl::StatusOr<YamlSettings> FolderSettings(const std::string& answer, const Context&) {
  if (answer == "auto") return YamlSettings{};
  return YamlSettings{{"checkpoint.dir", QuotedYaml(answer)}};
}

// "train" for [python3, /a/Train.py, --lr].
std::string SuggestedName(const Context& c) {
  std::string from = c.spec.train().model().preset();
  if (c.spec.train().model().has_path()) from = c.spec.train().model().path();
  for (const std::string& word : c.spec.command().argv()) {
    if (from.empty() || absl::EndsWith(word, ".py")) from = word;
    if (absl::EndsWith(word, ".py")) break;
  }
  while (absl::EndsWith(from, "/")) from.pop_back();
  from = from.substr(from.rfind('/') + 1);
  if (absl::EndsWith(from, ".py")) from.resize(from.size() - 3);
  std::string name;
  for (char each : from) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(each));
    if (name.empty() && !absl::ascii_islower(static_cast<unsigned char>(lower))) continue;
    name += absl::ascii_isalnum(static_cast<unsigned char>(lower)) ? lower : '-';
  }
  return name.empty() ? "job" : name.substr(0, kJobNameMax);
}

// What is run, and on how many ranks.
std::vector<ConfigQuestion> QuestionsAboutTheProgram() {
  return {
      {kKindQuestion,
       {},
       "What does the job run: a script of yours (script), or a model of Trainyard (model)?",
       "script: a program that calls torch.distributed, Accelerate or transformers, as torchrun runs it. model: GPT-2, "
       "Llama, Mistral or Qwen2, trained by Trainyard itself, without Python.",
       IsJob,
       [](const Context& c) { return std::string(c.facts.found.scripts.empty() ? "model" : "script"); },
       [](const std::string& answer, const Context&) -> absl::StatusOr<YamlSettings> {
         if (answer == "script" || answer == "model") return YamlSettings{};
         return absl::InvalidArgumentError(absl::StrCat("expected script or model, found ", answer));
       }},
      {"script",
       {"command.argv", "command.workdir"},
       "Which script, with its arguments?",
       "The command line of each rank: train.py --lr 0.1. A name that ends in .py is run by the python3 in the PATH of "
       "the worker daemon; any other first word is a program. Quotes work as in a shell.",
       IsScript,
       SuggestedScript,
       ScriptSettings},
      {"model",
       {"train.model"},
       "Which model: a preset, or a folder of transformers?",
       "A preset such as lab-tiny, gpt2 or llama3-8b is trained from random weights. A folder that transformers saved "
       "(config.json and *.safetensors) is trained further from its weights.",
       IsModel,
       SuggestedModel,
       ModelSettings},
      {"data",
       {"train.data"},
       "Which data?",
       "Files, folders or globs, separated by blanks. .jsonl: lines with text, prompt and response, or messages; .bin: "
       "tokens of nanoGPT or Megatron; .csv: numbers for a classifier; anything else is plain text.",
       IsModel,
       SuggestedData,
       DataSettings},
      {"steps",
       {"train.steps"},
       "How many steps?",
       "The number of updates of the weights.",
       IsModel,
       [](const Context&) { return absl::StrCat(kDefaultSteps); },
       [](const std::string& answer, const Context&) { return Plain("train.steps", answer); }},
      {"ranks",
       {"resources.ranks"},
       "How many ranks?",
       "A rank is one process, with one GPU if there are any. All ranks train one model together. This machine "
       "can have one rank for each GPU; without GPUs, choose a few, which share the cores.",
       [](const Context&) { return true; },
       SuggestedRanks,
       [](const std::string& answer, const Context&) { return Plain("resources.ranks", answer); }},
      {"ranks_per_host",
       {"command.ranks_per_host"},
       "How many ranks on each host?",
       "Every host that takes part runs exactly this number of ranks. It must divide the number of all ranks.",
       IsScriptElsewhere,
       [](const Context& c) { return absl::StrCat(Ranks(c)); },
       [](const std::string& answer, const Context&) { return Plain("command.ranks_per_host", answer); }},
  };
}

// Strategy, device, precision, batch, learning rate and evaluation.
std::vector<ConfigQuestion> QuestionsAboutTraining() {
  return {
      {"strategy",
       {"parallel.data"},
       "How is the training state divided: ddp, zero1, zero2, zero3 or fsdp?",
       "ddp: each rank has the whole state, which is the fastest if memory suffices. zero1: the optimizer state is "
       "divided; zero2: also the gradients; zero3 and fsdp: also the weights, which needs the least memory.",
       DecidesStrategy,
       [](const Context&) { return std::string("ddp"); },
       StrategySettings},
      {"device",
       {"resources.device"},
       "On CPUs (cpu) or on GPUs (gpu)?",
       "Accelerate itself starts several CPU processes only by mpirun; `trainctl launch --config_file` starts them "
       "without it.",
       IsAccelerate,
       [](const Context& c) { return std::string(c.facts.gpus > 0 ? "gpu" : "cpu"); },
       DeviceSettings},
      {"precision",
       {"train.precision"},
       "Which number type: fp32, bf16 or fp16?",
       "With bf16 and fp16 the model computes in 16 bits, which halves the memory of activations; the optimizer still "
       "updates weights in fp32. Each saves time only on processors that support it.",
       DecidesStrategy,
       SuggestedPrecision,
       [](const std::string& answer, const Context&) { return Plain("train.precision.type", answer); }},
      {"batch",
       {"train.batch.global"},
       "How many sequences in each step, over all ranks?",
       "The global batch. It must be a multiple of the number of sequences that all ranks process at a time.",
       IsModel,
       SuggestedBatch,
       [](const std::string& answer, const Context&) { return Plain("train.batch.global", answer); }},
      {"lr",
       {"train.optimizer.lr"},
       "Which learning rate?",
       "The peak rate of AdamW, after the warm-up. Usual: 3e-4 for a new model, 2e-5 to train a model further.",
       IsModel,
       [](const Context& c) { return std::string(c.spec.train().model().has_path() ? "2e-5" : "3e-4"); },
       [](const std::string& answer, const Context&) { return Plain("train.optimizer.lr", answer); }},
      {"evaluate",
       {"train.evaluate.every_steps"},
       "How many steps between evaluations (0: no evaluation)?",
       "The loss is computed on a twentieth of the data, on which the job does not train.",
       IsModel,
       [](const Context&) { return std::string("0"); },
       [](const std::string& answer, const Context&) { return Plain("train.evaluate.every_steps", answer); }},
  };
}

// Memory, failures and names.
std::vector<ConfigQuestion> FurtherQuestions() {
  return {
      {"offload",
       {"parallel.offload"},
       "Keep the divided state in the memory of the host (yes or no)?",
       "Offloading needs less GPU memory, and each step takes longer.",
       OffersOffload,
       [](const Context&) { return std::string("no"); },
       OffloadSettings},
      {"recompute",
       {"parallel.recompute"},
       "Compute activations again instead of storing them (yes or no)?",
       "Recomputation needs much less memory for long sequences, and about a third more computation.",
       OffersRecompute,
       [](const Context&) { return std::string("no"); },
       RecomputeSettings},
      {"save",
       {"checkpoint.every_steps"},
       "How many steps between checkpoints (0: only one, at the end)?",
       "A job that fails continues from its newest checkpoint.",
       IsModel,
       SuggestedInterval,
       [](const std::string& answer, const Context&) { return Plain("checkpoint.every_steps", answer); }},
      {"restarts",
       {"recovery.max_restarts"},
       "How many times may all ranks be started again after failures?",
       "The script must resume from its own checkpoint; otherwise it starts from the beginning.",
       IsScript,
       [](const Context&) { return std::string("3"); },
       [](const std::string& answer, const Context&) { return Plain("recovery.max_restarts", answer); }},
      {"folder",
       {"checkpoint.dir"},
       "In which folder does the run keep its files (auto: one for each run)?",
       "The run writes its checkpoints and metrics there. On a cluster all hosts must share this folder.",
       IsModel,
       [](const Context&) { return std::string("auto"); },
       FolderSettings},
      {"name",
       {"name"},
       "What is the job called?",
       "1 to 63 characters a-z, 0-9 and '-', starting with a letter.",
       IsJob,
       SuggestedName,
       [](const std::string& answer, const Context&) { return Plain("name", QuotedYaml(answer)); }},
  };
}

}  // namespace

std::string QuotedYaml(absl::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

const std::vector<ConfigQuestion>& ConfigQuestions() {
  static const auto& questions = *[] {
    auto* all = new std::vector<ConfigQuestion>(QuestionsAboutTheProgram());
    for (const auto& part : {QuestionsAboutTraining(), FurtherQuestions()}) {
      all->insert(all->end(), part.begin(), part.end());
    }
    return all;
  }();
  return questions;
}

}  // namespace trainyard::client
