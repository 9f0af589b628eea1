#include "checkpoint/fault_points.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manifest.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr uint64_t kRulesBytesMax = 1 << 20;
// Ends a wait whose test was killed, because that test never creates the file that the rule waits for.
constexpr absl::Duration kWaitLimit = absl::Minutes(10);
constexpr absl::Duration kWaitPoll = absl::Milliseconds(2);

constexpr absl::string_view kSinglePoints[] = {"snapshot", "ready", "grant", "commit"};
constexpr absl::string_view kCalls[] = {"create", "append", "writeback", "sync", "rename", "remove"};
constexpr absl::string_view kTargets[] = {"shard", "part", "manifest", "partial", "step", "run", "other"};
constexpr absl::string_view kPhases[] = {"before", "after"};

template <typename Names>
bool IsOneOf(absl::string_view name, const Names& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// ValidatePoint and the Read functions return what is wrong with the value; empty if nothing is.
std::string ValidatePoint(absl::string_view point) {
  if (IsOneOf(point, kSinglePoints)) return "";
  const std::vector<absl::string_view> parts = absl::StrSplit(point, ':');
  auto known = [](absl::string_view part, const auto& names) { return part == "*" || IsOneOf(part, names); };
  if (parts.size() == 3 && known(parts[0], kCalls) && known(parts[1], kTargets) && known(parts[2], kPhases)) return "";
  return absl::StrCat("point=", point, ": expected ", absl::StrJoin(kSinglePoints, ", "), ", or (",
                      absl::StrJoin(kCalls, "|"), "):(", absl::StrJoin(kTargets, "|"),
                      "):(before|after), with * for any");
}

std::string ReadAct(absl::string_view value, FaultRule& rule) {
  using Act = FaultRule::Act;
  const std::pair<absl::string_view, Act> actions[] = {{"kill", Act::kKill},
                                                       {"stop", Act::kStop},
                                                       {"enospc", Act::kNoSpace},
                                                       {"eio", Act::kIoError},
                                                       {"erofs", Act::kReadOnly}};
  for (const auto& [name, act] : actions) {
    if (value != name) continue;
    rule.act = act;
    return "";
  }
  if (absl::string_view rest = value; absl::ConsumePrefix(&rest, "slow:")) {
    rule.act = Act::kSlow;
    if (absl::ParseDuration(std::string(rest), &rule.delay) && rule.delay >= absl::ZeroDuration()) return "";
    return absl::StrCat("do=", value, ": expected a duration such as slow:500ms");
  }
  if (absl::string_view rest = value; absl::ConsumePrefix(&rest, "wait:")) {
    rule.act = Act::kWait;
    rule.file = std::string(rest);
    return rest.empty() ? "do=wait:: expected the path of a file after the colon" : "";
  }
  return absl::StrCat("do=", value, ": expected kill, stop, enospc, eio, erofs, slow:DURATION or wait:FILE");
}

std::string ReadCount(absl::string_view key, absl::string_view value, uint64_t min, std::optional<uint64_t>& count) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < min) {
    return absl::StrCat(key, "=", value, ": expected a number of at least ", min);
  }
  count = number;
  return "";
}

std::string ReadKey(absl::string_view key, absl::string_view value, FaultRule& rule) {
  if (key == "point") {
    rule.point = std::string(value);
    return ValidatePoint(value);
  }
  if (key == "do") return ReadAct(value, rule);
  if (key == "rank") return ReadCount(key, value, 0, rule.rank);
  if (key == "generation") return ReadCount(key, value, 1, rule.generation);
  if (key == "nth") return ReadCount(key, value, 1, rule.nth);
  if (key != "once")
    return absl::StrCat("'", key, "' is not a key; the keys are point, do, rank, generation, nth, once");
  rule.once = std::string(value);
  return value.empty() ? "once=: expected the path of a file" : "";
}

FaultRule ReadRule(absl::string_view text, std::vector<std::string>& problems) {
  FaultRule rule;
  bool has_do = false;
  auto add = [&](const std::string& problem) {
    if (!problem.empty()) problems.push_back(absl::StrCat("'", text, "': ", problem));
  };
  for (absl::string_view pair : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(halves.first);
    has_do = has_do || key == "do";
    add(ReadKey(key, absl::StripAsciiWhitespace(halves.second), rule));
  }
  if (rule.point.empty()) add("point= is missing");
  if (!has_do) add("do= is missing");
  return rule;
}

// Whether a rule's point, such as "sync:*:before", matches a point such as "sync:shard:before".
bool Matches(absl::string_view pattern, absl::string_view point) {
  const std::vector<absl::string_view> wanted = absl::StrSplit(pattern, ':'), parts = absl::StrSplit(point, ':');
  if (wanted.size() != parts.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (wanted[i] != "*" && wanted[i] != parts[i]) return false;
  }
  return true;
}

// Creates a file that contains the id of this process. Returns false if the file exists or cannot be created.
bool MakeMarker(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  const std::string pid = absl::StrCat(getpid(), "\n");
  (void)!write(fd, pid.data(), pid.size());
  close(fd);
  return true;
}

absl::string_view TargetOf(const std::string& path, absl::string_view other_target) {
  const std::string name = std::filesystem::path(path).filename().string();
  if (name == kManifestName) return "manifest";
  if (absl::EndsWith(name, kPartialSuffix)) return "partial";
  if (absl::EndsWith(name, ".safetensors")) return "shard";
  if (absl::StartsWith(name, "part-") && absl::EndsWith(name, ".json")) return "part";
  return StepOfFolderName(name).has_value() ? "step" : other_target;
}

// The points before and after one call of the file system. `other_target` is the target of a path that TargetOf does
// not recognise.
class CallPoints {
 public:
  CallPoints(FaultPoints& points, absl::string_view call, const std::string& path,
             absl::string_view other_target = "other")
      : points_(points),
        name_(absl::StrCat(call, ":", TargetOf(path, other_target))),
        what_(absl::StrCat(call, " ", path)) {}

  absl::Status Before() { return points_.Pass(absl::StrCat(name_, ":before"), what_); }
  absl::Status After() { return points_.Pass(absl::StrCat(name_, ":after"), what_); }
  template <typename Call>
  absl::Status Around(const Call& call) {
    RETURN_IF_ERROR(Before());
    RETURN_IF_ERROR(call());
    return After();
  }

 private:
  FaultPoints& points_;
  const std::string name_;
  const std::string what_;
};

class FaultyFile final : public WritableFile {
 public:
  FaultyFile(std::unique_ptr<WritableFile> file, FaultPoints& points, const std::string& path)
      : file_(std::move(file)),
        append_(points, "append", path),
        write_back_(points, "writeback", path),
        sync_(points, "sync", path) {}

  absl::Status Append(absl::string_view bytes) override {
    return append_.Around([&] { return file_->Append(bytes); });
  }
  absl::Status StartWriteBack(uint64_t first, uint64_t last) override {
    return write_back_.Around([&] { return file_->StartWriteBack(first, last); });
  }
  absl::Status AwaitWriteBack(uint64_t first, uint64_t last) override {
    return write_back_.Around([&] { return file_->AwaitWriteBack(first, last); });
  }
  absl::Status Sync() override {
    return sync_.Around([&] { return file_->Sync(); });
  }

 private:
  const std::unique_ptr<WritableFile> file_;
  CallPoints append_, write_back_, sync_;
};

class FaultyFileSystem final : public FileSystem {
 public:
  FaultyFileSystem(FileSystem& base, FaultPoints& points) : base_(base), points_(points) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    CallPoints points(points_, "create", path);
    RETURN_IF_ERROR(points.Before());
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, base_.Create(path));
    RETURN_IF_ERROR(points.After());
    return std::make_unique<FaultyFile>(std::move(file), points_, path);
  }
  absl::Status MakeFolder(const std::string& path) override {
    return CallPoints(points_, "create", path).Around([&] { return base_.MakeFolder(path); });
  }
  absl::Status SyncFolder(const std::string& path) override {
    return CallPoints(points_, "sync", path, "run").Around([&] { return base_.SyncFolder(path); });
  }
  absl::Status SyncFile(const std::string& path) override {
    return CallPoints(points_, "sync", path).Around([&] { return base_.SyncFile(path); });
  }
  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override {
    return CallPoints(points_, "rename", from).Around([&] { return base_.RenameOrExchange(from, to); });
  }
  absl::Status RemoveAll(const std::string& path) override {
    return CallPoints(points_, "remove", path).Around([&] { return base_.RemoveAll(path); });
  }

 private:
  FileSystem& base_;
  FaultPoints& points_;
};

std::atomic<FaultPoints*> installed = nullptr;

}  // namespace

absl::StatusOr<std::vector<FaultRule>> ParseFaultRules(absl::string_view text) {
  std::string from_file;
  if (absl::ConsumePrefix(&text, "@")) {
    absl::StatusOr<std::string> read = ReadFile(std::string(text), kRulesBytesMax);
    if (!read.ok())
      return absl::InvalidArgumentError(absl::StrCat(kFaultPointsVariable, ": ", read.status().message()));
    from_file = *std::move(read);
    text = from_file;
  }
  std::vector<FaultRule> rules;
  std::vector<std::string> problems;
  for (absl::string_view rule : absl::StrSplit(text, absl::ByAnyChar(";\n"), absl::SkipWhitespace())) {
    rules.push_back(ReadRule(absl::StripAsciiWhitespace(rule), problems));
  }
  if (problems.empty()) return rules;
  return absl::InvalidArgumentError(absl::StrCat(kFaultPointsVariable, ": ", absl::StrJoin(problems, "; ")));
}

FaultEffects FaultEffects::Real() {
  return {.kill = [] { ::kill(getpid(), SIGKILL); },
          .stop = [] { ::kill(getpid(), SIGSTOP); },
          // The sleep is the fault that the rule requests.
          .sleep = [](absl::Duration duration) { absl::SleepFor(duration); }};
}

FaultPoints::FaultPoints(std::vector<FaultRule> rules, uint64_t rank, uint64_t generation, FaultEffects effects)
    : effects_(std::move(effects)) {
  for (FaultRule& rule : rules) {
    if (rule.rank.value_or(rank) != rank || rule.generation.value_or(generation) != generation) continue;
    rules_.push_back({std::move(rule)});
  }
}

absl::Status FaultPoints::Pass(absl::string_view point, absl::string_view what) {
  std::vector<FaultRule> matching;
  {
    absl::MutexLock lock(&mu_);
    for (CountedRule& counted : rules_) {
      if (!Matches(counted.rule.point, point)) continue;
      ++counted.passes;
      if (counted.rule.nth.value_or(counted.passes) == counted.passes) matching.push_back(counted.rule);
    }
  }
  for (const FaultRule& rule : matching) {
    if (!rule.once.empty() && !MakeMarker(rule.once)) continue;
    RETURN_IF_ERROR(Act(rule, point, what));
  }
  return absl::OkStatus();
}

absl::Status FaultPoints::Act(const FaultRule& rule, absl::string_view point, absl::string_view what) {
  const std::string message = absl::StrCat("fault point ", point, ": cannot ", what);
  switch (rule.act) {
    case FaultRule::Act::kKill:
      effects_.kill();
      break;
    case FaultRule::Act::kStop:
      effects_.stop();
      break;
    case FaultRule::Act::kNoSpace:
      return ErrnoStatus(ENOSPC, message);
    case FaultRule::Act::kIoError:
      return ErrnoStatus(EIO, message);
    case FaultRule::Act::kReadOnly:
      return ErrnoStatus(EROFS, message);
    case FaultRule::Act::kSlow:
      effects_.sleep(rule.delay);
      break;
    case FaultRule::Act::kWait:
      MakeMarker(absl::StrCat(rule.file, ".reached"));
      for (int64_t polls = kWaitLimit / kWaitPoll; polls > 0 && !FileExists(rule.file); --polls) {
        effects_.sleep(kWaitPoll);
      }
      break;
  }
  return absl::OkStatus();
}

std::unique_ptr<FileSystem> NewFaultyFileSystem(FileSystem& base, FaultPoints& points) {
  return std::make_unique<FaultyFileSystem>(base, points);
}

absl::StatusOr<FileSystem*> InstallFaultPoints(const char* rules, uint64_t rank, uint64_t generation,
                                               FileSystem& base) {
  if (rules == nullptr) return &base;
  ASSIGN_OR_RETURN(std::vector<FaultRule> parsed, ParseFaultRules(rules));
  // Never deleted: threads may save until the process ends.
  auto* points = new FaultPoints(std::move(parsed), rank, generation, FaultEffects::Real());
  installed = points;
  return NewFaultyFileSystem(base, *points).release();
}

absl::Status FaultPoint(absl::string_view point) {
  FaultPoints* points = installed;
  return points == nullptr ? absl::OkStatus() : points->Pass(point, point);
}

}  // namespace trainyard
