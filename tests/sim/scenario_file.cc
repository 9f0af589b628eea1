#include "tests/sim/scenario_file.h"

#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard::sim {
namespace {

// The words of one line; a word that no call has read is an error.
class Line {
 public:
  explicit Line(absl::string_view text) {
    std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
    for (size_t i = 0; i < words.size(); ++i) {
      std::pair<std::string, std::string> pair = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
      if (absl::StrContains(words[i], '=')) {
        named_[pair.first] = pair.second;
      } else {
        plain_.push_back(words[i]);
      }
    }
  }

  std::string Word(size_t index) {
    used_ = std::max(used_, index + 1);
    return index < plain_.size() ? plain_[index] : "";
  }
  bool Flag(absl::string_view name) {
    if (used_ >= plain_.size() || plain_[used_] != name) return false;
    ++used_;
    return true;
  }
  std::optional<std::string> Text(const std::string& name) {
    auto at = named_.find(name);
    if (at == named_.end()) return std::nullopt;
    std::string value = at->second;
    named_.erase(at);
    return value;
  }
  template <typename Number>
  void Read(const std::string& name, Number& into) {
    if (auto text = Text(name); text.has_value()) Parse(*text, into);
  }
  template <typename Number>
  void Parse(const std::string& text, Number& into) {
    bool parsed = false;
    if constexpr (std::is_same_v<Number, absl::Duration>) {
      parsed = absl::ParseDuration(text, &into);
    } else if constexpr (std::is_same_v<Number, double>) {
      parsed = absl::SimpleAtod(text, &into);
    } else {
      parsed = absl::SimpleAtoi(text, &into);
    }
    if (!parsed) Refuse(absl::StrCat("'", text, "' is not a number or time"));
  }
  void Refuse(std::string why) {
    if (error_.empty()) error_ = std::move(why);
  }
  std::string Error() const {
    if (!error_.empty()) return error_;
    if (!named_.empty()) return absl::StrCat("'", named_.begin()->first, "' is unknown");
    return used_ < plain_.size() ? absl::StrCat("'", plain_[used_], "' is unknown") : "";
  }

 private:
  std::vector<std::string> plain_;
  std::map<std::string, std::string> named_;
  size_t used_ = 0;
  std::string error_;
};

template <typename Kind>
std::optional<Kind> KindByName(absl::string_view name) {
  for (int i = 0; i <= static_cast<int>(Kind::kLast); ++i) {
    if (name == NameOf(static_cast<Kind>(i))) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

std::optional<v1::JobState> StateByName(absl::string_view name) {
  v1::JobState state;
  bool known = v1::JobState_Parse(absl::StrCat("JOB_STATE_", absl::AsciiStrToUpper(name)), &state);
  return known ? std::optional(state) : std::nullopt;
}

void ReadHost(Line& line, Scenario& scenario) {
  HostPlan& host = scenario.hosts.emplace_back();
  line.Read("slots", host.slots);
  line.Read("offset", host.clock_offset);
  line.Read("drift", host.clock_drift);
}

void ReadJob(Line& line, Scenario& scenario) {
  JobPlan& job = scenario.jobs.emplace_back();
  line.Parse(line.Word(1), job.number);
  line.Read("at", job.at);
  line.Read("ranks", job.ranks);
  line.Read("steps", job.steps);
  line.Read("step", job.step_time);
  line.Read("save", job.save_every);
  line.Read("evaluate", job.evaluate_every);
  line.Read("restarts", job.max_restarts);
  line.Read("folder-of", job.folder_of);
  line.Read("stages", job.stages);
  line.Read("tensor", job.tensor);
  line.Read("min-ranks", job.min_ranks);
  line.Read("per-host", job.ranks_per_host);
  line.Read("grow-after", job.grow_after);
  line.Read("grace", job.grace);
  uint32_t ignores_stop = 0;
  line.Read("ignores-stop", ignores_stop);
  job.ignores_stop = ignores_stop > 0;
  line.Read("priority", job.priority);
  job.name_space = line.Text("namespace").value_or(job.name_space);
}

void ReadQueue(Line& line, QueuePlan& queue) {
  line.Read("overtake", queue.overtake);
  line.Read("min-run", queue.min_run);
  queue.preemption = line.Flag("preemption");
}

void ReadNamespace(Line& line, QueuePlan& queue) {
  NamespacePlan& space = queue.namespaces.emplace_back();
  space.name = line.Word(1);
  line.Read("slots", space.max_slots);
  line.Read("weight-milli", space.weight_milli);
}

void ReadOperation(Line& line, Scenario& scenario) {
  auto kind = KindByName<OperationKind>(line.Word(1));
  if (!kind.has_value()) return line.Refuse(absl::StrCat("unknown operation '", line.Word(1), "'"));
  Operation& operation = scenario.operations.emplace_back();
  operation.kind = *kind;
  line.Read("at", operation.at);
  uint32_t number = 1;
  line.Read("job", number);
  operation.job = number - 1;
  line.Read("host", operation.host);
  line.Read("priority", operation.priority);
  operation.now = line.Flag("now");
}

void ReadFault(Line& line, Scenario& scenario) {
  auto kind = KindByName<FaultKind>(line.Word(1));
  if (!kind.has_value()) return line.Refuse(absl::StrCat("unknown fault '", line.Word(1), "'"));
  Fault& fault = scenario.faults.emplace_back();
  fault.kind = *kind;
  line.Read("at", fault.at);
  line.Read("lasts", fault.lasts);
  line.Read("host", fault.host);
  line.Read("salt", fault.salt);
  std::optional<std::string> when = line.Text("when");
  if (!when.has_value()) return;
  Trigger& trigger = fault.when.emplace();
  std::pair<std::string, std::string> parts = absl::StrSplit(*when, absl::MaxSplits(':', 1));
  auto state = StateByName(parts.first);
  if (!state.has_value()) return line.Refuse(absl::StrCat("unknown state '", parts.first, "'"));
  trigger.state = *state;
  line.Parse(parts.second, trigger.generation);
  line.Read("job", trigger.job);
}

void ReadExpectation(Line& line, ScenarioFile& scenario_file) {
  JobExpectation& expected = scenario_file.jobs.emplace_back();
  line.Read("job", expected.job);
  if (auto name = line.Text("state"); name.has_value()) {
    expected.state = StateByName(*name);
    if (!expected.state.has_value()) line.Refuse(absl::StrCat("unknown state '", *name, "'"));
  }
  if (auto text = line.Text("generation"); text.has_value()) line.Parse(*text, expected.generation.emplace());
}

void ReadLine(Line& line, ScenarioFile& scenario_file) {
  const std::string what = line.Word(0);
  if (what == "host") return ReadHost(line, scenario_file.scenario);
  if (what == "job") return ReadJob(line, scenario_file.scenario);
  if (what == "queue") return ReadQueue(line, scenario_file.scenario.queue);
  if (what == "namespace") return ReadNamespace(line, scenario_file.scenario.queue);
  if (what == "operation") return ReadOperation(line, scenario_file.scenario);
  if (what == "fault") return ReadFault(line, scenario_file.scenario);
  if (what == "expect") return ReadExpectation(line, scenario_file);
  if (what == "seed") return line.Parse(line.Word(1), scenario_file.scenario.seed);
  if (what == "faults-end") return line.Parse(line.Word(1), scenario_file.scenario.faults_end);
  if (what == "coordinator-drift") return line.Parse(line.Word(1), scenario_file.scenario.coordinator_drift);
  if (what == "loss") return line.Parse(line.Word(1), scenario_file.scenario.loss);
  if (what == "extra-time") return line.Parse(line.Word(1), scenario_file.scenario.extra_time);
  if (what == "breaks") {
    scenario_file.breaks = line.Word(1);
    return;
  }
  if (what != "mutation") return line.Refuse(absl::StrCat("'", what, "' is unknown"));
  auto mutation = KindByName<Mutation>(line.Word(1));
  if (!mutation.has_value()) return line.Refuse(absl::StrCat("unknown mutation '", line.Word(1), "'"));
  scenario_file.mutation = *mutation;
}

// Reads `expect log "..."` or `expect no-log "..."`; returns false if the row is neither.
bool ReadQuoted(absl::string_view text, ScenarioFile& scenario_file) {
  bool logged = absl::ConsumePrefix(&text, "expect log \"");
  if (!logged && !absl::ConsumePrefix(&text, "expect no-log \"")) return false;
  if (!absl::ConsumeSuffix(&text, "\"")) return false;
  (logged ? scenario_file.logged : scenario_file.not_logged).emplace_back(text);
  return true;
}

absl::Status CheckScenarioFile(const ScenarioFile& scenario_file) {
  const Scenario& scenario = scenario_file.scenario;
  if (scenario.hosts.empty() || scenario.jobs.empty()) {
    return absl::InvalidArgumentError("a scenario needs at least one host and one job");
  }
  for (const JobPlan& job : scenario.jobs) {
    if (job.step_time <= absl::ZeroDuration() || job.number == 0 || job.ranks == 0) {
      return absl::InvalidArgumentError(absl::StrCat("job ", job.number, " needs a number, ranks and a step time"));
    }
    if (job.min_ranks > job.ranks || (job.is_script() && (job.divides_model() || job.folder_of > 0))) {
      return absl::InvalidArgumentError(
          absl::StrCat("job ", job.number,
                       " is a script, so its min-ranks must be at most its ranks, and it must have no "
                       "stages, tensor or folder-of"));
    }
    const uint64_t copy = uint64_t{job.stages} * job.tensor;
    if (copy == 0 || job.ranks % copy != 0) {
      return absl::InvalidArgumentError(absl::StrCat("job ", job.number, " has ", job.ranks, " ranks, which stages=",
                                                     job.stages, " x tensor=", job.tensor, " does not divide"));
    }
  }
  return absl::OkStatus();
}

void WriteOperationsAndFaults(const Scenario& scenario, std::string& text) {
  auto time = [](absl::Duration duration) { return absl::FormatDuration(duration); };
  for (const Operation& operation : scenario.operations) {
    bool of_host = operation.kind >= OperationKind::kDrain && operation.kind <= OperationKind::kUncordon;
    absl::StrAppend(&text, "operation ", NameOf(operation.kind), " at=", time(operation.at),
                    of_host ? absl::StrCat(" host=", operation.host) : absl::StrCat(" job=", operation.job + 1),
                    operation.kind == OperationKind::kSetPriority ? absl::StrCat(" priority=", operation.priority) : "",
                    operation.now ? " now\n" : "\n");
  }
  for (const Fault& fault : scenario.faults) {
    absl::StrAppend(&text, "fault ", NameOf(fault.kind));
    if (IsOfHost(fault.kind)) absl::StrAppend(&text, " host=", fault.host);
    if (fault.when.has_value()) {
      absl::StrAppend(&text, " when=", absl::AsciiStrToLower(StateName(fault.when->state)), ":", fault.when->generation,
                      " job=", fault.when->job);
    }
    absl::StrAppend(&text, " at=", time(fault.at), " lasts=", time(fault.lasts), " salt=", fault.salt, "\n");
  }
}

void WriteExpectations(const ScenarioFile& scenario_file, std::string& text) {
  for (const JobExpectation& job : scenario_file.jobs) {
    absl::StrAppend(&text, "expect job=", job.job);
    if (job.state.has_value()) absl::StrAppend(&text, " state=", absl::AsciiStrToLower(StateName(*job.state)));
    if (job.generation.has_value()) absl::StrAppend(&text, " generation=", *job.generation);
    absl::StrAppend(&text, "\n");
  }
  for (const std::string& part : scenario_file.logged) absl::StrAppend(&text, "expect log \"", part, "\"\n");
  for (const std::string& part : scenario_file.not_logged) absl::StrAppend(&text, "expect no-log \"", part, "\"\n");
  if (!scenario_file.breaks.empty()) absl::StrAppend(&text, "breaks ", scenario_file.breaks, "\n");
}

bool LogContains(const Result& result, const std::string& part) {
  for (const std::string& line : result.logged) {
    if (absl::StrContains(line, part)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ScenarioFile> ParseScenarioFile(absl::string_view text) {
  ScenarioFile scenario_file;
  scenario_file.scenario.faults_end = absl::Seconds(45);
  int number = 0;
  for (absl::string_view row : absl::StrSplit(text, '\n')) {
    ++number;
    row = absl::StripAsciiWhitespace(row);
    if (absl::ConsumePrefix(&row, "#")) {
      absl::StrAppend(&scenario_file.why, scenario_file.why.empty() ? "" : "\n", absl::StripAsciiWhitespace(row));
      continue;
    }
    if (row.empty() || ReadQuoted(row, scenario_file)) continue;
    Line line(row);
    ReadLine(line, scenario_file);
    if (std::string error = line.Error(); !error.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", error));
    }
  }
  if (absl::Status status = CheckScenarioFile(scenario_file); !status.ok()) return status;
  return scenario_file;
}

std::string FormatScenarioFile(const ScenarioFile& scenario_file) {
  const Scenario& scenario = scenario_file.scenario;
  auto time = [](absl::Duration duration) { return absl::FormatDuration(duration); };
  std::string text;
  for (absl::string_view row : absl::StrSplit(scenario_file.why, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "# ", row, "\n");
  }
  absl::StrAppend(&text, "seed ", scenario.seed, "\n");
  if (scenario_file.mutation != Mutation::kNone)
    absl::StrAppend(&text, "mutation ", NameOf(scenario_file.mutation), "\n");
  absl::StrAppend(&text, "faults-end ", time(scenario.faults_end), "\n");
  if (scenario.coordinator_drift != 0)
    absl::StrAppendFormat(&text, "coordinator-drift %.9f\n", scenario.coordinator_drift);
  if (scenario.loss > 0) absl::StrAppendFormat(&text, "loss %.17g\n", scenario.loss);
  if (scenario.extra_time > absl::ZeroDuration())
    absl::StrAppend(&text, "extra-time ", time(scenario.extra_time), "\n");
  if (scenario.queue.any()) {
    absl::StrAppend(&text, "queue overtake=", time(scenario.queue.overtake), " min-run=", time(scenario.queue.min_run),
                    scenario.queue.preemption ? " preemption\n" : "\n");
  }
  for (const NamespacePlan& space : scenario.queue.namespaces) {
    absl::StrAppend(&text, "namespace ", space.name, " slots=", space.max_slots, " weight-milli=", space.weight_milli,
                    "\n");
  }
  for (const HostPlan& host : scenario.hosts) {
    absl::StrAppendFormat(&text, "host slots=%d offset=%s drift=%.9f\n", host.slots, time(host.clock_offset),
                          host.clock_drift);
  }
  for (const JobPlan& job : scenario.jobs) {
    const std::string script = job.is_script()
                                   ? absl::StrCat(" min-ranks=", job.min_ranks, " per-host=", job.ranks_per_host,
                                                  " grow-after=", time(job.grow_after), " grace=", time(job.grace),
                                                  " ignores-stop=", job.ignores_stop ? 1 : 0)
                                   : "";
    absl::StrAppend(&text, "job ", job.number, " at=", time(job.at), " ranks=", job.ranks, " steps=", job.steps,
                    " step=", time(job.step_time), " save=", job.save_every, " evaluate=", job.evaluate_every,
                    " restarts=", job.max_restarts, job.folder_of > 0 ? absl::StrCat(" folder-of=", job.folder_of) : "",
                    job.stages > 1 ? absl::StrCat(" stages=", job.stages) : "",
                    job.tensor > 1 ? absl::StrCat(" tensor=", job.tensor) : "",
                    job.priority != 50 ? absl::StrCat(" priority=", job.priority) : "",
                    job.name_space != "default" ? absl::StrCat(" namespace=", job.name_space) : "", script, "\n");
  }
  WriteOperationsAndFaults(scenario, text);
  WriteExpectations(scenario_file, text);
  return text;
}

absl::Status Replay(const ScenarioFile& scenario_file, Result* result_out) {
  Result result = World(scenario_file.scenario,
                        {.mutation = scenario_file.mutation, .trace = result_out != nullptr, .keep_log = true})
                      .Run();
  std::string wrong;
  const std::string broken = result.violation.has_value() ? result.violation->invariant : "";
  if (broken != scenario_file.breaks) {
    absl::StrAppend(&wrong, "\n  breaks '", broken, "', expected '", scenario_file.breaks, "'",
                    result.violation.has_value() ? absl::StrCat(": ", result.violation->text) : "");
  }
  for (const JobExpectation& expected : scenario_file.jobs) {
    auto at = result.jobs.find(expected.job);
    const JobOutcome outcome = at == result.jobs.end() ? JobOutcome() : at->second;
    if (expected.state.value_or(outcome.state) != outcome.state ||
        expected.generation.value_or(outcome.generation) != outcome.generation) {
      absl::StrAppend(&wrong, "\n  job ", expected.job, " ended ", StateName(outcome.state), " in generation ",
                      outcome.generation);
    }
  }
  for (const std::string& part : scenario_file.logged) {
    if (!LogContains(result, part)) absl::StrAppend(&wrong, "\n  no log line contains '", part, "'");
  }
  for (const std::string& part : scenario_file.not_logged) {
    if (LogContains(result, part)) absl::StrAppend(&wrong, "\n  a log line contains '", part, "'");
  }
  if (result_out != nullptr) *result_out = std::move(result);
  return wrong.empty() ? absl::OkStatus() : absl::FailedPreconditionError(wrong);
}

}  // namespace trainyard::sim
