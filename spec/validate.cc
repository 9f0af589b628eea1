#include "spec/validate.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/network.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "models/model_description.h"
#include "spec/choices.h"
#include "spec/command_rules.h"
#include "spec/data_rules.h"
#include "spec/former_keys.h"
#include "spec/freeze_rules.h"
#include "spec/lora_rules.h"
#include "spec/model_parallel_rules.h"
#include "spec/model_rules.h"
#include "spec/model_sizes.h"
#include "spec/parallel_rules.h"
#include "spec/precision_rules.h"
#include "spec/schedule_rules.h"
#include "tokenizers/byte_tokenizer.h"

namespace trainyard {
namespace {

// Larger than any tensor (1 TiB of fp32) or model of today, and small enough that products of valid sizes do not
// overflow 64 bits.
constexpr uint64_t kTensorElementsMax = uint64_t{1} << 38;
constexpr uint64_t kParametersMax = uint64_t{1} << 42;
constexpr size_t kInterfaceBytesMax = 15;  // the kernel's IFNAMSIZ without the terminating zero

std::string NameOf(const google::protobuf::EnumDescriptor* type, int number) {
  const auto* value = type->FindValueByNumber(number);
  return value == nullptr ? absl::StrCat(number) : EnumName(*value);
}

// Whether the HTTP library that delivers webhooks can parse `authority`, the part of a URL between "://" and the path.
// Between brackets, that library accepts digits and colons only. It takes other text for a host name, or throws.
bool IsHostWithOptionalPort(absl::string_view authority) {
  const bool has_port = absl::StrContains(authority, ":") && !absl::EndsWith(authority, "]");
  const std::string with_port = has_port ? std::string(authority) : absl::StrCat(authority, ":80");
  const absl::optional<HostPort> split = SplitHostPort(with_port);
  if (!split.has_value()) return false;
  const bool is_ipv6 = absl::StrContains(split->host, ":");
  if (is_ipv6) return split->host.find_first_not_of("0123456789:") == absl::string_view::npos;
  return authority.find_first_of("[]") == absl::string_view::npos;
}

class Validator {
 public:
  Validator(const v1::JobSpec& spec, const Positions& positions, Problems* problems)
      : spec_(spec), train_(spec.train()), positions_(positions), problems_(*problems) {}

  void CheckNames() {
    if (spec_.has_name()) CheckName("name", spec_.name());
    if (spec_.has_namespace_()) CheckName("namespace", spec_.namespace_());
  }

  // Returns whether the job trains. Otherwise it is a command or a probe, or invalid.
  bool CheckKind() {
    if (spec_.has_train() && spec_.has_probe()) {
      Error("probe", "measures hosts instead of training a model; give either train or probe, not both");
    }
    if (spec_.has_command() && (spec_.has_train() || spec_.has_probe())) {
      Error("command", absl::StrCat("runs a program instead of our trainer; give either ",
                                    spec_.has_train() ? "train" : "probe", " or command, not both"));
    }
    if (!spec_.has_train() && !spec_.has_probe() && !spec_.has_command()) {
      Error("train",
            "is required; expected a map with the keys model, data, batch, steps and more (or `command`, "
            "to run a program, or `probe`, to measure hosts instead)");
    }
    if (spec_.has_command()) CheckCommandKeys(spec_, positions_, &problems_);
    return spec_.has_train();
  }

  // Warns of the keys of training that a command does not use.
  void CheckCommand() {
    if (spec_.has_checkpoint()) {
      NoEffect("checkpoint", "the program of a command decides when it saves; its folder is command.checkpoint_dir");
    }
    if (spec_.has_parallel()) NoEffect("parallel", "the program of a command decides how it trains");
    if (spec_.has_diagnostics()) NoEffect("diagnostics", "they are about our trainer, which a command does not run");
    if (spec_.resources().has_product_kernels() || spec_.resources().has_mkl_avx512()) {
      NoEffect("resources.product_kernels", "a command is given no settings of our trainer");
    }
    if (spec_.command().has_grow_after_s() && !spec_.command().has_min_ranks()) {
      NoEffect("command.grow_after_s", "without command.min_ranks the number of ranks is fixed");
    }
    if (spec_.network().has_shared_memory() && Ranks() > 1) {
      NoEffect("network.shared_memory", "the ranks of a command communicate by means of their own");
    }
  }

  // Warns of the keys of training that a probe does not use.
  void CheckProbe() {
    if (spec_.has_checkpoint()) NoEffect("checkpoint", "a probe saves nothing");
    if (spec_.has_parallel()) NoEffect("parallel", "a probe trains nothing");
    if (spec_.has_diagnostics()) NoEffect("diagnostics", "a probe trains nothing");
    const uint64_t hosts = static_cast<uint64_t>(spec_.resources().hosts_size());
    if (Ranks() > 0 && hosts > Ranks()) {
      Error("resources.ranks", absl::StrCat("is ", Ranks(), ", but resources.hosts names ", hosts,
                                            " hosts, and a probe has a rank on each: set ranks to ", hosts));
    }
  }

  void CheckOnEnd() {
    const std::string& url = spec_.on_end().webhook();
    if (!spec_.on_end().has_webhook()) return;
    const bool has_scheme = absl::StartsWith(url, "http://") || absl::StartsWith(url, "https://");
    const size_t host = url.find("://") + 3;
    const size_t path = std::min(url.find_first_of("/?#", has_scheme ? host : 0), url.size());
    const bool is_plain = std::all_of(url.begin(), url.end(), [](char c) { return absl::ascii_isgraph(c); });
    if (!has_scheme || path <= host || !is_plain) {
      Error("on_end.webhook", "expected a URL like https://example.org/path, of visible ASCII characters");
    } else if (url.find('@') < path) {
      Error("on_end.webhook", "must not contain a user or password: everyone who may read the job can see it");
    } else if (const std::string authority = url.substr(host, path - host); !IsHostWithOptionalPort(authority)) {
      Error("on_end.webhook", absl::StrCat("expected a host, with a port of 1 to 65535 if there is one, as in "
                                           "http://example.org:8080/path; found ",
                                           authority, ". For an IPv6 address with letters, give a host name instead"));
    }
  }

  void CheckModel() {
    const v1::Model& model = train_.model();
    CheckModelKeys(train_, positions_, &problems_);
    // Tokens that other programs made, and those of a tokenizer's file, are checked when they are read.
    const v1::Data& data = train_.data();
    const bool is_byte_text =
        data.jsonl_size() + data.tokens_size() + data.csv_size() == 0 && TokenizerPathOf(train_).empty();
    const uint32_t min_vocabulary = is_byte_text ? TokenizerVocabulary(train_.data().tokenizer()) : 0;
    if (model.has_vocabulary() && model.vocabulary() < min_vocabulary) {
      Error("train.model.vocabulary",
            absl::StrCat(
                "must be at least ", min_vocabulary, ", the size of the tokenizer '",
                NameOf(v1::Tokenizer_descriptor(), std::max<int>(train_.data().tokenizer(), v1::TOKENIZER_BYTES)),
                "'; found ", model.vocabulary()));
    }
  }

  void CheckSizes() {
    const v1::Model& model = train_.model();
    if (model.layers() == 0 || model.heads() == 0 || model.width() == 0 || model.context() == 0) return;
    const uint64_t vocabulary = Vocabulary();
    const bool counts_adapters = CheckLora(train_, positions_, &problems_);
    const uint64_t parameters = counts_adapters ? CountParameters(SizesOf(train_)) : CountParameters(model);
    if (parameters > kParametersMax) {
      Error("train.model", absl::StrCat("has ", parameters, " parameters, more than the ", kParametersMax,
                                        " that this program supports; choose fewer layers or a smaller width"));
    }
    const uint64_t micro = DecidedMicro(spec_, std::max(DataRanks(), uint64_t{1}));
    if (micro == 0) return;
    const uint64_t length = static_cast<uint64_t>(DecidedLength(train_));
    CheckTensor("logits", {{"micro", micro}, {"length", length}, {"vocabulary", vocabulary}});
    CheckTensor("attention scores",
                {{"micro", micro}, {"heads", model.heads()}, {"length", length}, {"length", length}});
    const ModelSizes sizes = SizesOfModel(model);
    const Size inner = IsLlamaGraph(sizes.family) ? Size{"inner", static_cast<uint64_t>(sizes.inner)}
                                                  : Size{"4 x width", 4 * uint64_t{model.width()}};
    CheckTensor("activations", {{"micro", micro}, {"length", length}, inner});
  }

  void CheckBatchAndParallel() {
    CheckBatch(spec_, DataRanks(), positions_, &problems_);
    CheckParallel(spec_, DataRanks(), positions_, &problems_);
    CheckModelParallel(spec_, Ranks(), positions_, &problems_);
    CheckPrecision(train_, spec_.resources().device(), positions_, &problems_);
    CheckFreeze(train_, positions_, &problems_);
  }

  void CheckData() {
    CheckDataSource(train_, positions_, &problems_);
    if (Ranks() == 1 && train_.data().has_uneven())
      NoEffect("train.data.uneven", "a job of one rank reads one set of files");
    CheckEvaluation();
  }

  void CheckEvaluation() {
    const v1::Evaluate& evaluate = train_.evaluate();
    const bool has_interval = evaluate.every_steps() > 0;
    const bool lacks_data =
        train_.data().has_validation() && train_.data().validation() == 0 && train_.data().held_out_size() == 0;
    constexpr char kNoInterval[] = "train.evaluate.every_steps is 0, so there is no evaluation";
    if (has_interval && lacks_data) {
      NoEffect("train.evaluate.every_steps", "train.data.validation is 0, so there is no text to evaluate on");
    }
    if (!has_interval && evaluate.has_batches()) NoEffect("train.evaluate.batches", kNoInterval);
    if (evaluate.patience() == 0 && evaluate.has_min_delta()) {
      NoEffect("train.evaluate.min_delta", "train.evaluate.patience is 0, so training does not end early");
    }
    if (has_interval && !lacks_data) return;
    const auto refuse = [&](absl::string_view key) {
      Error(key, has_interval
                     ? "needs data to evaluate on; expected train.data.validation above 0, or train.data.held_out"
                     : "needs evaluations; expected train.evaluate.every_steps above 0, found 0");
    };
    if (evaluate.patience() > 0) refuse("train.evaluate.patience");
    if (spec_.checkpoint().keep_best()) refuse("checkpoint.keep_best");
  }

  void CheckOptimizer() {
    if (train_.optimizer().has_lr() && train_.optimizer().lr() == 0) {
      Warning("train.optimizer.lr", "is 0: the model learns nothing");
    }
    CheckSchedule(train_, positions_, &problems_);
  }

  void CheckIntervals() {
    const uint64_t steps = train_.steps();
    if (steps == 0) return;
    if (train_.schedule().kind() != v1::SCHEDULE_KIND_WSD && train_.schedule().warmup_steps() > steps) {
      Warning("train.schedule.warmup_steps", absl::StrCat("is ", train_.schedule().warmup_steps(), ", beyond steps ",
                                                          steps, ": the learning rate never reaches its peak"));
    }
    if (train_.evaluate().every_steps() > steps) {
      Warning("train.evaluate.every_steps", absl::StrCat("is ", train_.evaluate().every_steps(), ", beyond steps ",
                                                         steps, ": the only evaluation follows the last step"));
    }
    const uint64_t hash_every = spec_.diagnostics().hash_every_steps();
    if (hash_every > 0 && Ranks() == 1) {
      NoEffect("diagnostics.hash_every_steps", "one rank has no other to compare its parameters with");
    } else if (hash_every > steps) {
      NoEffect("diagnostics.hash_every_steps", absl::StrCat("it is ", hash_every, ", beyond steps ", steps));
    }
    if (spec_.checkpoint().every_steps() > steps) {
      Warning("checkpoint.every_steps", absl::StrCat("is ", spec_.checkpoint().every_steps(), ", beyond steps ", steps,
                                                     ": only the last step is saved"));
    }
    if (spec_.checkpoint().keep_every() > 0 && spec_.checkpoint().has_keep() && spec_.checkpoint().keep() == 0) {
      NoEffect("checkpoint.keep_every", "checkpoint.keep is 0, so none is removed");
    }
    if (spec_.checkpoint().full_optimizer() && spec_.checkpoint().format() != v1::CHECKPOINT_FORMAT_FULL) {
      NoEffect("checkpoint.full_optimizer", "only checkpoint.format full writes the optimizer whole");
    }
  }

  void CheckResources() {
    CheckHosts("resources.hosts", spec_.resources().hosts());
    CheckHosts("resources.exclude_hosts", spec_.resources().exclude_hosts());
    const auto& names = spec_.resources().exclude_hosts();
    const std::set<absl::string_view> excluded(names.begin(), names.end());
    for (const std::string& host : spec_.resources().hosts()) {
      if (excluded.count(host) == 0) continue;
      Error("resources.exclude_hosts", absl::StrCat("excludes '", host, "', which resources.hosts requests"));
    }
    CheckFormerKeys(spec_, positions_, &problems_);
    const std::string& interface = spec_.network().interface();
    if (spec_.network().has_interface() && (interface.empty() || interface.size() > kInterfaceBytesMax ||
                                            interface.find_first_of("/ ") != std::string::npos)) {
      Error("network.interface", absl::StrCat("expected the name of a network interface, 1 to ", kInterfaceBytesMax,
                                              " characters without '/' and blanks, as `ip link` shows them; found '",
                                              interface.substr(0, 80), "'"));
    }
    if (Ranks() != 1) return;
    if (spec_.network().has_interface()) NoEffect("network.interface", "a job of one rank does not communicate");
    if (spec_.network().has_shared_memory())
      NoEffect("network.shared_memory", "a job of one rank does not communicate");
  }

 private:
  struct Size {
    const char* name;
    uint64_t value;
  };

  uint64_t Ranks() const {
    if (spec_.resources().has_ranks()) return spec_.resources().ranks();
    // 0: a value was given, but it was invalid.
    return positions_.count("resources.ranks") > 0 ? 0 : 1;
  }

  uint64_t DataRanks() const { return KnownDataRanks(spec_.parallel(), Ranks(), positions_); }

  void CheckHosts(absl::string_view path, const google::protobuf::RepeatedPtrField<std::string>& hosts) {
    std::set<absl::string_view> seen;
    for (const std::string& host : hosts) {
      if (!IsHostName(host)) {
        Error(path, absl::StrCat("'", host.substr(0, 80),
                                 "' cannot be the name of a host: 1 to 253 letters, digits, '-', "
                                 "'_' or '.', as `trainctl cluster` shows them"));
      } else if (!seen.insert(host).second) {
        Error(path, absl::StrCat("names '", host, "' twice"));
      }
    }
  }

  uint64_t Vocabulary() const {
    return train_.model().has_vocabulary() ? train_.model().vocabulary()
                                           : TokenizerVocabulary(train_.data().tokenizer());
  }

  void CheckTensor(absl::string_view what, const std::vector<Size>& sizes) {
    absl::uint128 elements = 1;
    for (const Size& size : sizes) elements *= size.value;  // at most 2^24 x 2^10 x 2^20 x 2^20: fits 128 bits
    if (elements <= kTensorElementsMax) return;
    std::string product = absl::StrJoin(
        sizes, " x ", [](std::string* out, const Size& size) { absl::StrAppend(out, size.name, " ", size.value); });
    Error("train", absl::StrCat("the ", what, " of one micro-batch would have ", product, " elements, more than the ",
                                kTensorElementsMax, " that this program supports; choose smaller sizes"));
  }

  void CheckName(absl::string_view key, const std::string& name) {
    if (IsJobName(name)) return;
    Error(key, absl::StrCat("must consist of 1 to 63 characters a-z, 0-9 and '-', starting with a letter; found '",
                            name.substr(0, 80), "'"));
  }
  void Error(absl::string_view path, absl::string_view text) { problems_.AddError(positions_, path, text); }
  void Warning(absl::string_view path, absl::string_view text) { problems_.AddWarning(positions_, path, text); }
  // Adds no warning for a key with its default value, which has the same meaning as no value.
  void NoEffect(absl::string_view path, absl::string_view why) {
    const google::protobuf::Message* message = &spec_;
    const google::protobuf::FieldDescriptor* field = nullptr;
    for (absl::string_view key : absl::StrSplit(path, '.')) {
      if (field != nullptr) message = &message->GetReflection()->GetMessage(*message, field);
      field = yaml::FieldOfKey(*message->GetDescriptor(), key);
    }
    if (field->message_type() == nullptr && yaml::HasDefaultValue(*message, *field)) return;
    Warning(path, absl::StrCat("has no effect: ", why));
  }

  const v1::JobSpec& spec_;
  const v1::Train& train_;
  const Positions& positions_;
  Problems& problems_;
};

}  // namespace

bool IsJobName(absl::string_view name) {
  if (name.empty() || name.size() > 63 || !absl::ascii_islower(name[0])) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; });
}

bool IsHostName(absl::string_view name) {
  return !name.empty() && name.size() <= 253 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

uint32_t TokenizerVocabulary(v1::Tokenizer) { return ByteTokenizer::kVocabulary; }

uint64_t CountParameters(const v1::Model& model) { return CountParameters(SizesOfModel(model)); }

void ValidateJob(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  Validator validator(spec, positions, problems);
  validator.CheckNames();
  if (validator.CheckKind()) {
    validator.CheckModel();
    validator.CheckSizes();
    validator.CheckBatchAndParallel();
    validator.CheckData();
    validator.CheckOptimizer();
    validator.CheckIntervals();
  } else if (spec.has_command()) {
    validator.CheckCommand();
  } else if (spec.has_probe()) {
    validator.CheckProbe();
  }
  validator.CheckResources();
  validator.CheckOnEnd();
}

}  // namespace trainyard
