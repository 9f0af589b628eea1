// Implements OpenData (rank_data.h).
#include <sys/stat.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/data/byte_samples.h"
#include "worker/data/chat_records.h"
#include "worker/data/csv_samples.h"
#include "worker/trainer/rank_data.h"

namespace trainyard {
namespace {

// Describes which files form each group; empty if all files are in one group.
std::string GroupsText(const Corpus& corpus) {
  std::string text;
  if (corpus.groups().size() == 1) return text;
  for (const Corpus::Group& group : corpus.groups()) absl::StrAppend(&text, "group up to ", group.end_file, "\n");
  return text;
}

// Opens the files of a set whose samples are made of bytes.
absl::Status OpenBytes(const StartOrder& order, CorpusOptions options, DataSet& set, std::ostream& log) {
  options.length = SampleLength(order.config);
  ASSIGN_OR_RETURN(set.corpus, Corpus::Open(options));
  const Corpus& corpus = *set.corpus;
  int64_t num_samples = 0;
  for (size_t group = 0; group < corpus.groups().size(); ++group) {
    set.sources.push_back(
        std::make_unique<ByteSamples>(corpus, options.length, group, order.config.data.separate_documents));
    num_samples += set.sources.back()->num_samples(options.trains ? DataPart::kTraining : DataPart::kEvaluation);
  }
  if (order.rank != 0) return absl::OkStatus();
  if (!options.trains) {
    log << absl::StrFormat("held out: %d files, %.1f MB, %d samples", corpus.files().size(),
                           static_cast<double>(corpus.num_bytes()) / 1e6, num_samples)
        << std::endl;
    return absl::OkStatus();
  }
  log << absl::StrFormat("data: %d files, %.1f MB, %.1f MB of them for validation; an epoch is %d samples of %d tokens",
                         corpus.files().size(), static_cast<double>(corpus.num_bytes()) / 1e6,
                         static_cast<double>(corpus.num_validation_bytes()) / 1e6, num_samples, options.length)
      << std::endl;
  return absl::OkStatus();
}

// Opens the chat template of the tokenizer; the template converts messages to text.
absl::Status OpenChat(const TrainConfig::Data& config, TokenPlan& plan) {
  const std::string& tokenizer_path = config.tokenizer_path;
  if (tokenizer_path.empty()) {
    return absl::InvalidArgumentError(
        "train.data.jsonl has messages, which only the chat template of a tokenizer converts to text; set "
        "train.data.tokenizer_path to the folder of the tokenizer");
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Open(tokenizer_path, config.chat_template);
  if (!chat.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("train.data.jsonl has messages, but the chat template of ",
                                                   tokenizer_path, " cannot be used: ", chat.status().message(), ". ",
                                                   ChatExportAdvice()));
  }
  plan.rules.chat = *std::move(chat);
  return absl::OkStatus();
}

absl::Status OpenEncoder(const TrainConfig& config, TokenPlan& plan) {
  if (!config.data.chat_template.empty() && plan.rules.fields.messages.empty()) {
    return absl::InvalidArgumentError(
        "train.data.chat_template is given, but the first line of train.data.jsonl has no messages; name the field "
        "with the messages in train.data.fields.messages, or remove the template");
  }
  if (plan.in_place() || (plan.form == DataForm::kJsonl && !plan.rules.needs_encoder())) return absl::OkStatus();
  const std::string& path = config.data.tokenizer_path;
  if (path.empty()) {
    plan.encoder = NewByteEncoder();
  } else {
    ASSIGN_OR_RETURN(plan.encoder, OpenTextEncoder(path),
                     << "train.data.tokenizer_path (train.data.tokenizer: bytes needs none)");
  }
  if (!plan.rules.fields.messages.empty()) {
    RETURN_IF_ERROR(OpenChat(config.data, plan));
  }
  const TextEncoder& encoder = *plan.encoder;
  if (encoder.vocabulary() > config.model.vocabulary) {
    // With a config.json, the key cannot be set to another number.
    const std::string advice =
        config.model_config.empty()
            ? absl::StrCat("set it to at least ", encoder.vocabulary())
            : absl::StrCat(
                  "it is that of the model's config.json: remove the additional tokens from the tokenizer, or "
                  "let transformers enlarge the model, by resize_token_embeddings(",
                  encoder.vocabulary(), ") and save_pretrained");
    return absl::InvalidArgumentError(absl::StrCat("train.model.vocabulary is ", config.model.vocabulary,
                                                   ", but the tokenizer has tokens up to ", encoder.vocabulary() - 1,
                                                   "; ", advice));
  }
  if (!plan.rules.has_documents() && !encoder.has_end()) {
    return absl::InvalidArgumentError(
        "train.data.tokenizer_path: the tokenizer has no token that ends a document, so documents cannot be joined; "
        "name one as eos_token in tokenizer_config.json, or set train.data.tokenizer: bytes for a model of bytes");
  }
  return absl::OkStatus();
}

RecordRules RulesOf(const TrainConfig& config) {
  const TrainConfig::Data::Fields& fields = config.data.fields;
  return {.fields = {.text = fields.text,
                     .prompt = fields.prompt,
                     .response = fields.response,
                     .input_ids = fields.input_ids,
                     .labels = fields.labels,
                     .messages = fields.messages},
          .loss_on_prompt = config.data.loss_on_prompts,
          .vocabulary = config.model.vocabulary,
          .separate_documents = config.data.separate_documents};
}

// What decides the tokens of all pieces, in addition to the files.
std::string RulesText(const TokenPlan& plan) {
  if (!plan.in_place()) {
    return absl::StrCat("tokens of version 1\n", plan.form == DataForm::kText ? "text" : "jsonl", "\n",
                        plan.rules.identity(), "\n", plan.encoder == nullptr ? "" : plan.encoder->identity(), "\n",
                        plan.rules.vocabulary, "\n");
  }
  std::string text = absl::StrCat("files of tokens\n", plan.rules.vocabulary, "\n");
  for (const TokenFile& file : plan.token_files) {
    absl::StrAppend(&text, static_cast<int>(file.type), " ", file.index_hash, "\n");
  }
  return text;
}

// Files without .idx hold 16-bit tokens. A file of 32-bit tokens would be read as twice as many wrong tokens.
absl::Status CheckFitsTokens(const DataSet& set) {
  constexpr int64_t kTokensOf16Bits = int64_t{1} << 16;
  std::vector<std::string> plain;
  for (size_t i = 0; i < set.plan->token_files.size(); ++i) {
    if (set.plan->token_files[i].index_hash.empty()) plain.push_back(set.corpus->files()[i].path);
  }
  if (plain.empty() || set.plan->rules.vocabulary <= kTokensOf16Bits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(set.key, ": ", JoinFirst(plain, 3), plain.size() == 1 ? " has" : " have",
                   " no .idx file, so the tokens have 16 bits, but train.model.vocabulary is ",
                   set.plan->rules.vocabulary, "; write them as Megatron does, with an .idx file"));
}

// Fails if train.data.separate_documents is set and a file does not say where documents begin.
absl::Status CheckHasDocuments(const DataSet& set) {
  std::vector<std::string> without;
  for (size_t i = 0; i < set.plan->token_files.size(); ++i) {
    if (!set.plan->token_files[i].has_documents) without.push_back(set.corpus->files()[i].path);
  }
  if (!set.plan->rules.separate_documents || without.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(set.key, ": ", JoinFirst(without, 3), without.size() == 1 ? " has" : " have",
                   " no .idx file, so it is unknown where documents begin, which train.data.separate_documents needs"));
}

// Cuts the files of a set into pieces, and adds all that decides their tokens to the identity of the corpus.
absl::Status CutIntoPieces(DataSet& set) {
  TokenPlan& plan = *set.plan;
  Corpus& corpus = *set.corpus;
  if (plan.in_place()) {
    ASSIGN_OR_RETURN(plan.token_files, OpenTokenFiles(corpus, set.key));
    RETURN_IF_ERROR(CheckFitsTokens(set));
    RETURN_IF_ERROR(CheckHasDocuments(set));
    plan.pieces = CutTokens(corpus);
  } else {
    plan.pieces = plan.form == DataForm::kText ? CutText(corpus, *plan.encoder) : CutAtLines(corpus);
  }
  std::string rules = RulesText(plan);
  // Each piece becomes one chunk of the token cache, so the same bytes need another cache key if they are divided into
  // files differently.
  for (const DataPiece& piece : plan.pieces) {
    absl::StrAppend(&rules, piece.file, " ", piece.begin, " ", piece.end, "\n");
  }
  absl::StrAppend(&rules, GroupsText(corpus));
  corpus.SetRules(rules);
  return absl::OkStatus();
}

// Opens files that are tokenized, and checks everything about them that one host can check alone. The held-out files
// use the same plan.
absl::Status OpenTokenized(const TrainConfig& config, const CorpusOptions& options, DataForm form, DataSet& set) {
  ASSIGN_OR_RETURN(set.corpus, Corpus::Open(options));
  set.plan = std::make_unique<TokenPlan>();
  TokenPlan& plan = *set.plan;
  plan.form = form;
  plan.rules = RulesOf(config);
  if (form == DataForm::kJsonl && plan.rules.fields == RecordFields()) {
    ASSIGN_OR_RETURN(plan.rules.fields, FieldsOfFirstRecord(*set.corpus));
  }
  RETURN_IF_ERROR(OpenEncoder(config, plan));
  return CutIntoPieces(set);
}

// Opens files of labelled rows. `columns`: the names that all files of the job share (CsvSamples::Open).
absl::Status OpenRows(const StartOrder& order, const CorpusOptions& options, std::vector<std::string>& columns,
                      DataSet& set, std::ostream& log) {
  const TrainConfig& config = order.config;
  ASSIGN_OR_RETURN(set.corpus, Corpus::Open(options));
  const Corpus& corpus = *set.corpus;
  int64_t num_samples = 0;
  for (const Corpus::Group& group : corpus.groups()) {
    ASSIGN_OR_RETURN(std::unique_ptr<CsvSamples> rows, CsvSamples::Open(corpus, group.first_file, group.end_file,
                                                                        {.num_features = config.model.context,
                                                                         .num_classes = config.model.vocabulary,
                                                                         .label = config.data.fields.label,
                                                                         .validation = options.validation,
                                                                         .trains = options.trains,
                                                                         .evaluates = options.evaluates,
                                                                         .key = set.key},
                                                                        columns));
    num_samples += rows->num_samples(options.trains ? DataPart::kTraining : DataPart::kEvaluation);
    set.sources.push_back(std::move(rows));
  }
  if (order.rank == 0) {
    log << absl::StrFormat("%s: %d files, %.1f MB; an epoch is %d rows", options.trains ? "data" : "held out",
                           corpus.files().size(), static_cast<double>(corpus.num_bytes()) / 1e6, num_samples)
        << std::endl;
  }
  return absl::OkStatus();
}

DataForm FormOf(const TrainConfig::Data& config) {
  if (!config.tokens.empty()) return DataForm::kTokens;
  if (!config.csv.empty()) return DataForm::kCsv;
  return config.jsonl.empty() ? DataForm::kText : DataForm::kJsonl;
}

// Returns the suffix of the files of a folder that are read; empty: all files are read.
const char* SuffixOf(DataForm form) {
  if (form == DataForm::kTokens) return kTokenFileSuffix;
  return form == DataForm::kCsv ? kCsvFileSuffix : "";
}

const char* KeyOf(DataForm form) {
  if (form == DataForm::kTokens) return "train.data.tokens";
  if (form == DataForm::kCsv) return "train.data.csv";
  return form == DataForm::kText ? "train.data.text" : "train.data.jsonl";
}

const std::vector<std::string>& PathsOf(const TrainConfig::Data& config, DataForm form) {
  switch (form) {
    case DataForm::kText:
      return config.text;
    case DataForm::kJsonl:
      return config.jsonl;
    case DataForm::kTokens:
      return config.tokens;
    case DataForm::kCsv:
      break;
  }
  return config.csv;
}

// The run folder, which a folder of text must not contain: a restart would find checkpoints among the data, and refuse
// to resume. Empty if the run resumes, because its data is then compared with that of the checkpoint.
std::string RunFolderToAvoid(const StartOrder& order) {
  return order.resume || order.restart_step.has_value() ? "" : order.config.checkpoint_dir;
}

absl::Status OpenTraining(const StartOrder& order, std::vector<std::string>& columns, DataSet& set, std::ostream& log) {
  const TrainConfig::Data& config = order.config.data;
  const DataForm form = FormOf(config);
  set.key = KeyOf(form);
  set.paths = PathsOf(config, form);
  const CorpusOptions options{.paths = set.paths,
                              .separate = !config.weights.empty(),
                              .validation = config.held_out.empty() ? config.validation : 0,
                              .evaluates = EvaluatesPart(order.config),
                              .key = set.key,
                              .suffix = SuffixOf(form),
                              .run_folder = RunFolderToAvoid(order)};
  if (form == DataForm::kCsv) {
    RETURN_IF_ERROR(OpenRows(order, options, columns, set, log));
    set.corpus->SetRules(absl::StrCat("rows with label ", config.fields.label, "\n", GroupsText(*set.corpus)));
    return absl::OkStatus();
  }
  if (form != DataForm::kText || !config.tokenizer_path.empty()) {
    return OpenTokenized(order.config, options, form, set);
  }
  RETURN_IF_ERROR(OpenBytes(order, options, set, log));
  const std::string rules = absl::StrCat(options.separate ? GroupsText(*set.corpus) : "",
                                         config.separate_documents ? DocumentsText(*set.corpus) : "");
  if (!rules.empty()) set.corpus->SetRules(rules);
  return absl::OkStatus();
}

// Names the files of `held_out` that are trained on too.
absl::Status CheckDisjoint(const Corpus& train, const Corpus& held_out) {
  const auto identity = [](const Corpus::File& file) {
    struct stat info = {};
    return stat(file.path.c_str(), &info) == 0 ? std::pair(info.st_dev, info.st_ino) : std::pair<dev_t, ino_t>();
  };
  std::set<std::pair<dev_t, ino_t>> trained;
  for (const Corpus::File& file : train.files()) trained.insert(identity(file));
  std::vector<std::string> both;
  for (const Corpus::File& file : held_out.files()) {
    if (trained.count(identity(file)) > 0) both.push_back(file.path);
  }
  if (both.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("train.data.held_out: ", JoinFirst(both, 3),
                                                 both.size() == 1 ? " is" : " are",
                                                 " trained on too; name only files that are not training data"));
}

absl::Status OpenHeldOut(const StartOrder& order, const TokenPlan* plan, std::vector<std::string>& columns,
                         DataSet& set, std::ostream& log) {
  set.key = "train.data.held_out";
  set.paths = order.config.data.held_out;
  const CorpusOptions options{.paths = set.paths,
                              .validation = 1,
                              .trains = false,
                              .evaluates = true,
                              .key = set.key,
                              .suffix = SuffixOf(FormOf(order.config.data)),
                              .run_folder = RunFolderToAvoid(order)};
  if (FormOf(order.config.data) == DataForm::kCsv) return OpenRows(order, options, columns, set, log);
  if (plan == nullptr) return OpenBytes(order, options, set, log);
  ASSIGN_OR_RETURN(set.corpus, Corpus::Open(options));
  set.plan = std::make_unique<TokenPlan>(*plan);
  return CutIntoPieces(set);
}

}  // namespace

absl::Status OpenData(const StartOrder& order, RankData& data, std::ostream& log) {
  std::vector<std::string> problems;
  const auto add = [&problems](const absl::Status& status) {
    if (absl::IsInvalidArgument(status)) problems.push_back(std::string(status.message()));
    return status.ok() || absl::IsInvalidArgument(status);
  };
  std::vector<std::string> columns;  // of CSV files
  const absl::Status training = OpenTraining(order, columns, data.train, log);
  if (!add(training)) return training;
  const bool is_tokenized = data.train.plan != nullptr;
  const bool has_held_out = order.config.evaluate_every > 0 && !order.config.data.held_out.empty();
  // The held-out files need the plan of the training data. If opening that data failed after a plan was made, the
  // held-out files are not checked, because the plan may be wrong; if there is no plan yet, at least their paths are
  // checked.
  if (has_held_out && (training.ok() || !is_tokenized)) {
    absl::Status held_out = OpenHeldOut(order, data.train.plan.get(), columns, data.held_out, log);
    if (held_out.ok() && training.ok()) held_out = CheckDisjoint(*data.train.corpus, *data.held_out.corpus);
    if (!add(held_out)) return held_out;
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("host ", order.host, ": ", absl::StrJoin(problems, "\n")));
}

}  // namespace trainyard
