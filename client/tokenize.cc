// trainctl tokenize: counts the tokens of files, shows how a text is split, or builds the token cache of a job. It
// needs no coordinator. trainyard-trainer, which has the code of the ranks, replaces this process to build the cache.
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/byte_progress.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/job_input.h"
#include "client/local_checks.h"
#include "client/output.h"
#include "client/private_cluster.h"
#include "client/process.h"
#include "client/run_folder.h"
#include "client/tokenize_chats.h"
#include "common/escape.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "spec/prepare.h"
#include "tokenizers/open_tokenizer.h"

namespace trainyard::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A text is encoded in parts of about this size, where the tokenizer allows cuts, so that progress can be shown.
constexpr size_t kPartBytes = 1 << 20;
constexpr size_t kMaxShownBytes = 64 << 10;

struct TokenizeOptions {
  std::string tokenizer = "bytes";
  std::vector<std::string> files;
  bool show = false;
  bool json = false;
  // Used with --chats.
  bool chats = false;
  std::string chat_template;
  std::string messages = "messages";
  // Used with --build.
  JobOptions job;
  uint32_t threads = 0;
};

struct FileTokens {
  std::string file;
  uint64_t bytes = 0;
  uint64_t tokens = 0;
  std::vector<int32_t> ids;  // empty unless they are shown
};

double BytesPerToken(const FileTokens& counted) {
  return counted.tokens == 0 ? 0 : static_cast<double>(counted.bytes) / static_cast<double>(counted.tokens);
}

absl::StatusOr<FileTokens> Count(const Tokenizer& tokenizer, const std::string& file, bool keep_ids) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(file, limits::kTokenizerTextBytes));
  if (keep_ids && text.size() > kMaxShownBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, " has ", text.size(), " bytes: --show shows at most ",
                                                   kMaxShownBytes, "; copy a part of it to another file"));
  }
  ByteProgress progress(stderr, absl::StrCat("tokenize ", file), text.size());
  FileTokens counted{.file = file, .bytes = text.size(), .tokens = 0, .ids = {}};
  for (size_t begin = 0; begin < text.size();) {
    const size_t from = std::min(begin + kPartBytes, text.size());
    const size_t end = from < text.size() ? tokenizer.NextSafeCut(text, from) : text.size();
    const absl::string_view part = absl::string_view(text).substr(begin, end - begin);
    std::vector<int32_t> ids;
    RETURN_IF_ERROR(tokenizer.Append(part, {.special_tokens = false, .continues = begin > 0}, ids))
        << "in " << file << ", in the part that begins at byte " << begin;
    counted.tokens += ids.size();
    if (keep_ids) counted.ids.insert(counted.ids.end(), ids.begin(), ids.end());
    progress.Add(end - begin);
    begin = end;
  }
  return counted;
}

OrderedJson ToJson(const Tokenizer& tokenizer, const FileTokens& counted, bool show) {
  OrderedJson json = {{"file", counted.file},
                      {"bytes", counted.bytes},
                      {"tokens", counted.tokens},
                      {"bytes_per_token", BytesPerToken(counted)}};
  if (!show) return json;
  json["ids"] = counted.ids;
  json["pieces"] = OrderedJson::array();
  for (const int32_t id : counted.ids) json["pieces"].push_back(tokenizer.TokenOf(id));
  return json;
}

void PrintTokens(const Tokenizer& tokenizer, const FileTokens& counted, bool show) {
  Print(absl::StrFormat("%s: %s of %s, %.2f bytes per token\n", counted.file, Plural(counted.tokens, "token"),
                        Plural(counted.bytes, "byte"), BytesPerToken(counted)));
  if (!show) return;
  // Line ends in a token are escaped, too, so that each token has one line.
  for (const int32_t id : counted.ids) Print(absl::StrFormat("%8d  %s\n", id, EscapeText(tokenizer.TokenOf(id))));
}

absl::Status Tokenize(const TokenizeOptions& options) {
  if (options.chats) {
    return TokenizeChats({.tokenizer = options.tokenizer,
                          .files = options.files,
                          .template_file = options.chat_template,
                          .messages = options.messages,
                          .show = options.show,
                          .json = options.json});
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(options.tokenizer));
  OrderedJson files = OrderedJson::array();
  FileTokens total{.file = "all files", .bytes = 0, .tokens = 0, .ids = {}};
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(const FileTokens counted, Count(*tokenizer, file, options.show));
    total.bytes += counted.bytes;
    total.tokens += counted.tokens;
    if (options.json) {
      files.push_back(ToJson(*tokenizer, counted, options.show));
    } else {
      PrintTokens(*tokenizer, counted, options.show);
    }
  }
  if (options.json) {
    const OrderedJson json = {{"tokenizer",
                               {{"path", options.tokenizer},
                                {"kind", std::string(tokenizer->kind())},
                                {"vocabulary", tokenizer->vocabulary()},
                                {"hash", tokenizer->hash()}}},
                              {"files", files},
                              {"bytes", total.bytes},
                              {"tokens", total.tokens},
                              {"bytes_per_token", BytesPerToken(total)}};
    PrintJson(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  } else if (options.files.size() > 1) {
    PrintTokens(*tokenizer, total, false);
  }
  return OutputStatus();
}

// Makes `bytes` the standard input of this process.
absl::Status SetStandardInput(absl::string_view bytes) {
  const int fd = memfd_create("job", 0);
  if (fd < 0) return ErrnoStatus(errno, "cannot make a file in memory for the job");
  for (absl::string_view rest = bytes; !rest.empty();) {
    const ssize_t count = write(fd, rest.data(), rest.size());
    if (count < 0) return ErrnoStatus(errno, "cannot write the job to memory");
    rest.remove_prefix(static_cast<size_t>(count));
  }
  if (lseek(fd, 0, SEEK_SET) != 0 || dup2(fd, STDIN_FILENO) < 0) return ErrnoStatus(errno, "cannot pass the job on");
  return absl::OkStatus();
}

// The host name of the ranks that run on this machine. Under this name they record the content hashes of the files that
// they have read (worker/data/token_cache.h), so a job finds the hashes that this command records.
std::string HostNameOf(const Globals& globals) {
  if (globals.coordinator.empty()) return PrivateCluster::kHostName;
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

absl::Status Build(const Globals& globals, const TokenizeOptions& options) {
  const JobInput input{.file = options.job.file, .overrides = options.job.overrides};
  ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, /*on_this_machine=*/false));
  // LoadJob skipped the checks of this machine, because the job may run on others. The text files are read here, so
  // check them.
  CheckText(loaded.spec, loaded.positions, &loaded.problems);
  RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
  for (const Problem& warning : loaded.problems.Warnings()) SayUnprefixed(warning.ToString());
  ASSIGN_OR_RETURN(
      const PreparedJob job,
      PrepareJob(loaded.spec, {.job_id = "tokens", .default_run_root = DefaultRunRoot(WorkingDirectory())}));
  if (!job.spec.has_train()) {
    return absl::InvalidArgumentError(absl::StrCat(input.file, " is a probe or a command, which has no train.data"));
  }
  RETURN_IF_ERROR(SetStandardInput(job.bytes));
  std::vector<std::string> arguments = {"build-tokens", "--host", HostNameOf(globals), "--threads",
                                        absl::StrCat(options.threads)};
  if (options.json) arguments.push_back("--json");
  return BecomeTrainer(arguments);
}

void AddBuild(CLI::App& verb, TokenizeOptions& options) {
  CLI::Option* build = verb.add_option("--build", options.job.file,
                                       "Build the token cache that this job will use, so that it starts without "
                                       "tokenizing; - reads standard input")
                           ->type_name("JOB");
  for (const char* name : {"files", "--tokenizer", "--show", "--chats"}) build->excludes(verb.get_option(name));
  verb.add_option("--set", options.job.overrides, "With --build: set a key of the job, overriding the file")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(build);
  verb.add_option("--threads", options.threads, "With --build: number of threads; 0: one per core, at most 16")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024))
      ->needs(build);
}

void AddChats(CLI::App& verb, TokenizeOptions& options) {
  CLI::Option* chats = verb.add_flag("--chats", options.chats,
                                     "The files are JSONL with conversations: count their tokens, and the tokens that "
                                     "a job would use for the loss; with --show, print each conversation with * before "
                                     "each token that counts for the loss");
  chats->needs(verb.get_option("--tokenizer"));
  verb.add_option("--chat-template", options.chat_template,
                  "With --chats: a file with the template, instead of that of the tokenizer's folder")
      ->type_name("FILE")
      ->needs(chats);
  verb.add_option("--messages", options.messages, "With --chats: the field of each line that contains the messages")
      ->type_name("FIELD")
      ->capture_default_str()
      ->needs(chats);
}

}  // namespace

void AddTokenize(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* verb =
      app.add_subcommand("tokenize", "Count tokens, show how a text is split, or build a job's token cache");
  verb->add_option("files", options->files, "Text files, in UTF-8 unless the tokenizer is `bytes`");
  verb->add_option("--tokenizer", options->tokenizer,
                   "tokenizer.json or tokenizer.model, or a folder with one; bytes: one token per byte")
      ->capture_default_str();
  verb->add_flag("--show", options->show, "Show every token: its id, and its text as the tokenizer's file has it");
  AddChats(*verb, *options);
  AddBuild(*verb, *options);
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "--build makes the cache next to the run folders of the job (checkpoint.dir, else ./trainyard-runs). Run it on\n"
      "a machine where the files of the job have the same paths as on its hosts. Jobs and several builds may use it at "
      "the same time. Ctrl-C\n"
      "exits with 130; what is complete is kept, and the next build or job continues there.\n\n"
      "Examples:\n"
      "  trainctl tokenize --tokenizer gpt2/ corpus.txt\n"
      "  echo 'Hello, world' > hello.txt && trainctl tokenize --tokenizer gpt2/tokenizer.json --show hello.txt\n"
      "  trainctl tokenize --tokenizer llama/ --chats --show chats.jsonl\n"
      "  trainctl tokenize --build job.yaml && trainctl run job.yaml");
  verb->callback([&globals, options, chosen] {
    const bool builds = !options->job.file.empty();
    if (!builds && options->files.empty()) throw CLI::RequiredError("files, or --build JOB");
    *chosen = [&globals, options, builds] {
      return ReportStatus(builds ? Build(globals, *options) : Tokenize(*options), options->json);
    };
  });
}

}  // namespace trainyard::client
