// Tests the strict reader with the daemons' configuration, every default of the schema, and random input; also the
// writer, the rules for messages, and NearestName. Other tests cover the refusals of job files.
#include "common/strict_yaml.h"
#include "common/nearest_name.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "trainyard/v1/config.pb.h"
#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/machines.pb.h"

namespace trainyard {
namespace {

std::string ErrorsOf(const std::string& text, google::protobuf::Message* message) {
  Problems problems;
  ReadYaml({.text = text, .file_name = "f", .working_directory = "/w"}, message, &problems);
  return std::string(problems.ToStatus().message());
}

TEST(Config, IsReadAndGetsDefaults) {
  v1::WorkerConfig config;

  EXPECT_EQ(ErrorsOf("coordinator: 10.0.0.1:7070\nslots: 4\nstate: s\nlog: {format: json}\n", &config), "");
  ApplyDefaults(&config);

  EXPECT_EQ(config.coordinator(), "10.0.0.1:7070");
  EXPECT_EQ(config.slots(), 4u);
  EXPECT_EQ(config.state(), "/w/s");
  EXPECT_EQ(config.log().format(), v1::LOG_FORMAT_JSON);
  EXPECT_EQ(config.log().level(), v1::LOG_LEVEL_INFO);
  EXPECT_EQ(config.log_bytes_per_rank(), uint64_t{64} << 20);
}

TEST(Config, Auto_LeavesTheFieldUnset) {
  v1::WorkerConfig config;

  EXPECT_EQ(ErrorsOf("slots: auto\nname: auto\n", &config), "");
  ApplyDefaults(&config);

  EXPECT_FALSE(config.has_slots());
  EXPECT_FALSE(config.has_name());
}

TEST(Config, QuotedAuto_IsAString) {
  v1::WorkerConfig config;

  EXPECT_EQ(ErrorsOf("name: 'auto'\n", &config), "");

  EXPECT_EQ(config.name(), "auto");
}

TEST(Config, QuotedAuto_IsTheKeyword_WhereTheValueIsNoText) {
  v1::WorkerConfig config;

  EXPECT_EQ(ErrorsOf("slots: \"auto\"\n", &config), "");

  EXPECT_FALSE(config.has_slots());
}

TEST(Config, EmptyString_IsAValue) {
  v1::CoordinatorConfig config;

  EXPECT_EQ(ErrorsOf("metrics: ''\n", &config), "");
  ApplyDefaults(&config);

  EXPECT_EQ(config.metrics(), "");
}

TEST(Config, MapWithAllKeysCommentedOut_IsEmpty) {
  v1::CoordinatorConfig config;
  EXPECT_EQ(ErrorsOf("log:\n  # level: debug\nlisten: localhost:1\n", &config), "");
}

TEST(Config, TopLevelList_IsRejected) {
  v1::CoordinatorConfig config;
  EXPECT_EQ(ErrorsOf("- a\n", &config),
            "f:1:1: expected a map with the keys listen, state, metrics, lease_ms, finished_jobs, allow_plaintext, "
            "log, allow_local_users, token_file, webhooks, viewer_token_file, queue; found a list");
}

TEST(Config, KeyThatIsNotAScalar_IsRejected) {
  v1::CoordinatorConfig config;
  EXPECT_EQ(ErrorsOf("[a, b]: 1\n", &config), "f:1:1: expected a key, found a list or map in its place");
}

TEST(Config, ShippedCoordinatorFileIsValid) {
  v1::CoordinatorConfig config;

  absl::Status status = ReadYamlFile("configs/coordinator.yaml", &config);

  EXPECT_TRUE(status.ok()) << status;
  v1::CoordinatorConfig defaults;
  ApplyDefaults(&defaults);
  config.clear_state();
  EXPECT_EQ(WriteYaml(config), WriteYaml(defaults)) << "the file does not show the defaults";
}

TEST(Config, MissingFileIsNotFound) {
  v1::CoordinatorConfig config;
  EXPECT_EQ(ReadYamlFile("/no/such/file.yaml", &config).code(), absl::StatusCode::kNotFound);
}

TEST(Defaults, EveryDefaultOfTheSchemaIsValid) {
  for (const auto* descriptor : {v1::JobSpec::descriptor(), v1::CoordinatorConfig::descriptor(),
                                 v1::WorkerConfig::descriptor(), v1::MachineGroup::descriptor()}) {
    std::unique_ptr<google::protobuf::Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
    ApplyDefaults(message.get());
    std::string text = WriteYaml(*message);
    std::unique_ptr<google::protobuf::Message> again(message->New());

    EXPECT_EQ(ErrorsOf(text, again.get()), "") << text;
    ApplyDefaults(again.get());
    EXPECT_EQ(again->SerializeAsString(), message->SerializeAsString()) << text;
  }
}

TEST(WriteYaml, AmbiguousStrings_AreQuoted) {
  for (const char* text : {"", "auto", "true", "5", "1e3", "a: b", "a#b", "\"q\"", "back\\slash", "- x", "ü", "*a",
                           "&a", "!t", "null", "~", " blank "}) {
    v1::WorkerConfig config;
    config.set_name(text);
    v1::WorkerConfig again;

    EXPECT_EQ(ErrorsOf(WriteYaml(config), &again), "") << WriteYaml(config);
    EXPECT_EQ(again.name(), text) << WriteYaml(config);
  }
}

// Regression: strings such as Yes and OFF were not quoted, although readers of YAML 1.1 read them as booleans.
TEST(WriteYaml, StringsThatOtherReadersReadAsBooleansOrNull_AreQuoted) {
  for (const char* text : {"yes", "Yes", "YES", "No", "On", "OFF", "TRUE", "False", "NULL", "Null", "y", "N"}) {
    v1::WorkerConfig config;
    config.set_name(text);

    EXPECT_EQ(WriteYaml(config), absl::StrCat("name: \"", text, "\"\n"));
  }
}

TEST(WriteYaml, Numbers_AreReadBackExactly) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    v1::Schedule schedule;
    schedule.set_min_ratio(std::uniform_real_distribution<double>(0, 1)(random));
    v1::Schedule again;

    ASSERT_EQ(ErrorsOf(WriteYaml(schedule), &again), "");
    ASSERT_EQ(again.min_ratio(), schedule.min_ratio()) << WriteYaml(schedule);
  }
}

TEST(Texts, MustBeOneLineWithoutControlCharacters) {
  v1::WorkerConfig config;
  constexpr char kRule[] = "; a string must be one line of UTF-8 without control characters";

  EXPECT_EQ(ErrorsOf("name: \"a\\nb\"\n", &config), absl::StrCat("f:1:7: name: holds the control character 10", kRule));
  EXPECT_EQ(ErrorsOf("name: \"\\e[2J\"\n", &config),
            absl::StrCat("f:1:7: name: holds the control character 27", kRule));
  EXPECT_EQ(ErrorsOf("state: \"/a\\0b\"\n", &config),
            absl::StrCat("f:1:8: state: holds the control character 0", kRule));
  EXPECT_EQ(ErrorsOf("labels: [\"\\x9b1m\"]\n", &config),
            absl::StrCat("f:1:10: labels: holds the control character 155", kRule));
}

// Sets $HOME for one test.
class Home {
 public:
  explicit Home(const char* value) {
    if (const char* old = getenv("HOME"); old != nullptr) old_ = old;
    value == nullptr ? unsetenv("HOME") : setenv("HOME", value, 1);
  }
  ~Home() { setenv("HOME", old_.c_str(), 1); }

 private:
  std::string old_;
};

std::string StateOf(const std::string& text) {
  v1::WorkerConfig config;
  std::string errors = ErrorsOf("state: " + text + "\n", &config);
  return errors.empty() ? config.state() : errors;
}

TEST(Numbers, LeadingZero_IsRejected) {
  for (const char* text : {"010", "-01", "00"}) {
    v1::CoordinatorConfig config;
    EXPECT_EQ(ErrorsOf(absl::StrCat("lease_ms: ", text, "\n"), &config),
              absl::StrCat("f:1:11: lease_ms: begins with a 0, which some YAML readers treat as octal; write the "
                           "number without it, found ",
                           text));
  }
  v1::Optimizer optimizer;
  EXPECT_EQ(ErrorsOf("lr: 0.5\nweight_decay: 0\n", &optimizer), "");
}

TEST(Paths, Tilde_IsTheHomeFolder) {
  Home home("/home/ada");

  EXPECT_EQ(StateOf("~/runs"), "/home/ada/runs");
  EXPECT_EQ(StateOf("'~'"), "/home/ada");
  EXPECT_EQ(StateOf("./~/runs"), "/w/~/runs");
  EXPECT_EQ(StateOf("~bob/runs"),
            "f:1:8: state: begins with '~bob', but only ~/ (your own home folder) is expanded; write the path out, or "
            "./~... for a file of that name");
}

TEST(Paths, WithoutHome_ThePasswordDatabaseIsUsed) {
  Home home(nullptr);

  EXPECT_EQ(StateOf("~/runs").find("/"), 0u) << StateOf("~/runs");
  EXPECT_EQ(StateOf("~/runs").find('~'), std::string::npos);
}

TEST(Paths, ShellVariables_AreRejected) {
  for (const char* text : {"$HOME/runs", "/data/${USER}", "a$b"}) {
    EXPECT_EQ(StateOf(text), absl::StrCat("f:1:8: state: contains a '$', but shell variables are not expanded here; "
                                          "write the path out, or begin it with ~/ for your home folder: '",
                                          text, "'"));
  }
}

TEST(Paths, WorkingFolderThatIsNotText_IsReported) {
  v1::WorkerConfig config;
  Problems problems;

  ReadYaml({.text = "state: runs\n", .file_name = "f", .working_directory = "/tmp/\xff"}, &config, &problems);

  EXPECT_EQ(problems.ToStatus().message(),
            "f:1:8: state: is a path within the working folder, whose name is not UTF-8 text; write an absolute path, "
            "or start the program in another folder");
}

std::string RulesOn(const google::protobuf::Message& message) {
  Problems problems;
  CheckRules(message, {}, &problems);
  return std::string(problems.ToStatus().message());
}

TEST(Rules, ApplyToMessagesFromTheApi) {
  v1::WorkerConfig config;
  config.set_name("a\x1b[2Jb");
  EXPECT_EQ(RulesOn(config),
            "name: holds the control character 27; a string must be one line of UTF-8 without "
            "control characters");
  config.set_name("caf\xe9");
  EXPECT_EQ(RulesOn(config), "name: is not UTF-8 text; a string must be one line of UTF-8 without control characters");
  config.set_name("w1");
  config.set_state("runs");
  EXPECT_EQ(RulesOn(config), "state: must be an absolute path, found 'runs'");
  config.set_state("/runs");
  config.mutable_log()->set_level(static_cast<v1::LogLevel>(77));
  EXPECT_EQ(RulesOn(config), "log.level: expected one of debug, info, warning, error, found the unknown value 77");
  config.clear_log();
  for (int i = 0; i < 65; ++i) config.add_labels("a=b");
  EXPECT_EQ(RulesOn(config),
            "labels: expected a list in which each element is a string, found a list of 65; at most 64 are accepted");
}

TEST(Rules, Numbers_MustBeFinite) {
  v1::Optimizer optimizer;
  for (double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                       -std::numeric_limits<double>::infinity()}) {
    optimizer.set_lr(value);
    EXPECT_NE(RulesOn(optimizer).find("lr: must be from 0 to 1000, found "), std::string::npos) << RulesOn(optimizer);
  }
}

TEST(Rules, RejectedFields_AreCleared_AndTheirKeysRecorded) {
  v1::Optimizer optimizer;
  optimizer.set_lr(-1);
  optimizer.set_eps(1e-6);
  optimizer.add_betas(7);
  Positions positions;
  Problems problems;

  DropInvalid(&optimizer, &positions, &problems);

  EXPECT_EQ(problems.error_count(), 2) << problems.ToStatus();
  EXPECT_FALSE(optimizer.has_lr());
  EXPECT_EQ(optimizer.betas_size(), 0);
  EXPECT_EQ(optimizer.eps(), 1e-6);
  EXPECT_EQ(positions.count("lr") + positions.count("betas"), 2u);
}

TEST(Rules, UnknownField_IsRejected) {
  v1::Optimizer optimizer;
  optimizer.GetReflection()->MutableUnknownFields(&optimizer)->AddVarint(90, 1);

  EXPECT_NE(RulesOn(optimizer).find("holds field number 90, which this version does not know"), std::string::npos);
}

TEST(NearestName, TypingErrors_AreFound) {
  const std::vector<std::string> names = {"layers", "heads", "width", "context"};
  EXPECT_EQ(NearestName("layres", names), "layers");
  EXPECT_EQ(NearestName("Heads", names), "heads");
  EXPECT_EQ(NearestName("contxt", names), "context");
  EXPECT_EQ(NearestName("colour", names), "");
  EXPECT_EQ(NearestName("", names), "");
  EXPECT_EQ(NearestName(std::string(10'000, 'x'), names), "");
}

// The reader may reject random input with any message, but it must return.
TEST(Noise, RandomBytesNeverCrashTheReader) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string text(random() % 200, '\0');
    for (char& c : text) c = static_cast<char>(random());
    v1::JobSpec spec;
    ErrorsOf(text, &spec);
  }
}

TEST(Noise, PiecesOfYamlInAnyOrderNeverCrashTheReader) {
  const std::vector<std::string> pieces = {
      "name", "train", "model", ":",         " ",  "\n",    "  ",   "- ",   "[",     "]",  "{",   "}",   ",",
      "&a",   "*a",    "!t",    "|",         ">",  "'",     "\"",   "#",    "?",     "<<", "---", "...", "auto",
      "1",    "-1e9",  "~",     "%YAML 1.2", "\t", "steps", "data", "text", "!!int", "\\", "*",   "&"};
  for (uint32_t seed = 0; seed < 5000; ++seed) {
    std::mt19937 random(seed);
    std::string text;
    for (uint32_t i = random() % 60; i > 0; --i) text += pieces[random() % pieces.size()];
    v1::JobSpec spec;
    ErrorsOf(text, &spec);
    Problems problems;
    SetYamlKey("train.data", {.text = text, .file_name = "--set", .working_directory = "/w"}, &spec, &problems);
  }
}

TEST(Noise, OneByteChangedInARealJobNeverCrashesTheReader) {
  const std::string job = *ReadFile("configs/jobs/stdlib.yaml");
  for (uint32_t seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    std::string text = job;
    text[random() % text.size()] = static_cast<char>(random());
    v1::JobSpec spec;
    ErrorsOf(text, &spec);
  }
}

TEST(Noise, DeepNestingAndManyAliases_AreRefused) {
  v1::JobSpec spec;
  EXPECT_NE(ErrorsOf(std::string(100'000, '['), &spec), "");
  EXPECT_NE(ErrorsOf(std::string(100'000, '{'), &spec), "");
  std::string laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'z'; ++c) {
    std::string before(1, static_cast<char>(c - 1));
    absl::StrAppend(&laughs, std::string(1, c), ": &", std::string(1, c), " [*", before, ",*", before, ",*", before,
                    "]\n");
  }
  EXPECT_NE(ErrorsOf(laughs + "train: {data: {text: *y}}\n", &spec), "");
}

}  // namespace
}  // namespace trainyard
