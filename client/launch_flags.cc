#include "client/launch_flags.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/command_line_errors.h"

namespace trainyard::client {
namespace {

constexpr uint32_t kRanksMax = 65536;
constexpr uint32_t kBothStreams = 3;
constexpr size_t kJobNameBytes = 63;

bool ParseCount(absl::string_view text, uint32_t* count) {
  return absl::SimpleAtoi(text, count) && *count >= 1 && *count <= kRanksMax;
}

// "Train_GPT.py" becomes "train-gpt".
std::string NameOfJob(const std::string& program) {
  std::string name = program.substr(program.rfind('/') + 1);
  if (absl::EndsWith(name, ".py")) name.resize(name.size() - 3);
  for (char& c : name) {
    c = absl::ascii_tolower(static_cast<unsigned char>(c));
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  if (name.empty() || !absl::ascii_isalpha(static_cast<unsigned char>(name[0]))) name = absl::StrCat("launch-", name);
  return name.substr(0, kJobNameBytes);
}

// Collects problems, so that all are reported together.
class Planner {
 public:
  Planner(const LaunchFlags& flags, const LaunchFacts& facts) : flags_(flags), facts_(facts) {}

  absl::StatusOr<LaunchPlan> Plan() {
    const auto [min_hosts, hosts] = Hosts();
    plan_.ranks_per_host = RanksPerHost();
    if (uint64_t{hosts} * plan_.ranks_per_host > kRanksMax) {
      Problem(absl::StrCat("--nnodes ", hosts, " x --nproc-per-node ", plan_.ranks_per_host, " are more than the ",
                           kRanksMax, " ranks that a job may have"));
    }
    CheckHostFlags(min_hosts, hosts);
    ReadOutputFlags();
    SetProgram();
    if (!problems_.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
    v1::JobSpec& spec = plan_.spec;
    spec.set_name(NameOfJob(flags_.program.front()));
    SetRanks(min_hosts, hosts);
    spec.mutable_recovery()->set_max_restarts(flags_.max_restarts);
    if (flags_.priority.has_value()) spec.set_priority(*flags_.priority);
    if (!flags_.name_space.empty()) spec.set_namespace_(flags_.name_space);
    spec.mutable_command()->set_workdir(facts_.workdir);
    if (flags_.role != "default") spec.mutable_command()->add_env(absl::StrCat("ROLE_NAME=", flags_.role));
    for (const std::string& variable : flags_.env) spec.mutable_command()->add_env(variable);
    plan_.notes.insert(plan_.notes.end(), flags_.notes.begin(), flags_.notes.end());
    plan_.role = flags_.role;
    plan_.prefixes = spec.resources().ranks() > 1 || plan_.tee.any();
    NoteLoneRanks();
    if (plan_.redirects.any() && plan_.log_dir.empty() && !facts_.on_cluster) {
      plan_.notes.push_back(
          "--redirects without --log-dir: output that is not shown is removed when the job has succeeded");
    }
    if (!flags_.without_effect.empty()) {
      plan_.notes.push_back(absl::StrCat(absl::StrJoin(flags_.without_effect, ", "),
                                         flags_.without_effect.size() == 1 ? " has" : " have",
                                         " no effect: the coordinator forms the group, and rank 0's host chooses "
                                         "MASTER_ADDR and MASTER_PORT"));
    }
    return std::move(plan_);
  }

 private:
  void Problem(std::string text) { problems_.push_back(std::move(text)); }

  struct HostCounts {
    uint32_t least;
    uint32_t most;
  };

  HostCounts Hosts() {
    const std::vector<std::string> ends = absl::StrSplit(flags_.nnodes, ':');
    uint32_t least = 0, most = 0;
    if (ends.size() > 2 || !ParseCount(ends.front(), &least) || !ParseCount(ends.back(), &most) || least > most) {
      Problem(absl::StrCat("--nnodes: expected a number of hosts, or MIN:MAX; found '", flags_.nnodes, "'"));
      return {1, 1};
    }
    return {least, most};
  }

  // Without a cluster, all ranks run on this machine.
  void SetRanks(uint32_t min_hosts, uint32_t hosts) {
    v1::JobSpec& spec = plan_.spec;
    const uint32_t per_host = plan_.ranks_per_host;
    spec.mutable_resources()->set_ranks(facts_.on_cluster ? hosts * per_host : per_host);
    if (facts_.on_cluster) spec.mutable_command()->set_ranks_per_host(per_host);
    if (min_hosts == hosts) return;
    if (!facts_.on_cluster) {
      plan_.notes.push_back(
          absl::StrCat("--nnodes ", flags_.nnodes, ": without --coordinator, the script runs on this machine only"));
      return;
    }
    spec.mutable_command()->set_min_ranks(min_hosts * per_host);
    if (flags_.max_restarts > 0) return;
    plan_.notes.push_back(absl::StrCat("--nnodes ", flags_.nnodes,
                                       " without --max-restarts: the job fails when a host is lost, because "
                                       "continuing with fewer hosts uses a restart"));
  }

  uint32_t RanksPerHost() {
    const std::string& text = flags_.nproc_per_node;
    const bool by_name = text == "auto" || text == "cpu" || text == "gpu";
    uint32_t ranks = 0;
    if (!by_name && ParseCount(text, &ranks)) return ranks;
    if (!by_name) {
      Problem(absl::StrCat("--nproc-per-node: expected a number of 1 to ", kRanksMax, ", auto, cpu or gpu; found '",
                           text, "'"));
    } else if (facts_.on_cluster) {
      Problem(absl::StrCat("--nproc-per-node ", text,
                           ": with --coordinator, give a number; the hosts of a cluster "
                           "may differ from this machine"));
    } else if (text == "gpu" && facts_.gpus == 0) {
      Problem("--nproc-per-node gpu: this machine has no GPU; give a number, cpu or auto");
    } else {
      return text != "cpu" && facts_.gpus > 0 ? facts_.gpus : std::max(1u, facts_.cores);
    }
    return 1;
  }

  // Accelerate connects ranks on CPUs only if it is configured to use CPUs.
  void NoteLoneRanks() {
    const uint32_t ranks = plan_.spec.resources().ranks();
    const bool uses_cpu =
        std::find(flags_.env.begin(), flags_.env.end(), "ACCELERATE_USE_CPU=True") != flags_.env.end();
    if (!flags_.for_accelerate || facts_.on_cluster || facts_.gpus > 0 || ranks < 2 || uses_cpu) return;
    plan_.notes.push_back(
        absl::StrCat("warning: this machine has no GPU, so Accelerate does not connect the ", ranks,
                     " ranks, and each trains alone; give --cpu, or use_cpu: true in Accelerate's file"));
  }

  void CheckHostFlags(uint32_t min_hosts, uint32_t hosts) {
    if (hosts > 1 && flags_.standalone) Problem("--standalone means one host; remove --standalone or --nnodes");
    if (min_hosts > 1 && !facts_.on_cluster) {
      Problem(absl::StrCat("--nnodes ", flags_.nnodes,
                           " needs a cluster: start trainyard-coordinator on one host and "
                           "trainyard-worker on each, and give --coordinator HOST:PORT (README, \"A tour by hand\")"));
    }
    if (flags_.node_rank > 0) {
      Problem(absl::StrCat("--node-rank ", flags_.node_rank,
                           ": launch runs once for all hosts, not on each; run it "
                           "without --node-rank"));
    }
  }

  void ReadOutputFlags() {
    const auto read = [this](const char* flag, const std::string& text, StreamChoice* choice) {
      absl::StatusOr<StreamChoice> parsed = StreamChoice::Parse(text);
      if (parsed.ok()) *choice = *std::move(parsed);
      if (!parsed.ok()) Problem(absl::StrCat(flag, ": ", parsed.status().message()));
    };
    read("--redirects", flags_.redirects, &plan_.redirects);
    read("--tee", flags_.tee, &plan_.tee);
    plan_.log_dir = flags_.log_dir;
    const bool chooses = plan_.redirects.any() || plan_.tee.any() || !flags_.local_ranks_filter.empty();
    if (facts_.json && (chooses || !flags_.log_dir.empty())) {
      Problem(
          "--log-dir, --redirects, --tee and --local-ranks-filter have no effect with --json, whose lines name the "
          "rank "
          "and the stream; remove them, or --json");
    }
    if (flags_.local_ranks_filter.empty()) return;
    for (absl::string_view text : absl::StrSplit(flags_.local_ranks_filter, ',')) {
      uint32_t rank = 0;
      if (!absl::SimpleAtoi(text, &rank)) {
        Problem(absl::StrCat("--local-ranks-filter: expected ranks of a host as in 0,1; found '",
                             flags_.local_ranks_filter, "'"));
        return;
      }
      plan_.filter.insert(rank);
    }
  }

  void SetProgram() {
    if (flags_.program.empty()) {
      Problem(absl::StrCat("no program: expected ",
                           flags_.no_python ? "a program"
                           : flags_.module  ? "a module"
                                            : "a script",
                           " and its arguments after the flags"));
      return;
    }
    if (const std::string& first = flags_.program.front(); absl::StartsWith(first, "-")) {
      Problem(absl::StrCat("unknown flag '", first, "' before the script; `trainctl launch --help` lists the flags",
                           SuggestFlag(first, flags_.known)));
    }
    if (flags_.module && flags_.no_python) Problem("give either --module or --no-python, not both");
    v1::Command& command = *plan_.spec.mutable_command();
    if (!flags_.no_python) {
      command.add_argv(facts_.python);
      command.add_argv("-u");
      if (flags_.module) command.add_argv("-m");
    }
    for (const std::string& argument : flags_.program) command.add_argv(argument);
  }

  const LaunchFlags& flags_;
  const LaunchFacts& facts_;
  LaunchPlan plan_;
  std::vector<std::string> problems_;
};

}  // namespace

absl::StatusOr<StreamChoice> StreamChoice::Parse(const std::string& text) {
  StreamChoice choice;
  if (absl::SimpleAtoi(text, &choice.all_) && choice.all_ <= kBothStreams) return choice;
  choice.all_ = 0;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
    uint32_t rank = 0, streams = 0;
    if (pair.size() != 2 || !absl::SimpleAtoi(pair[0], &rank) || !absl::SimpleAtoi(pair[1], &streams) ||
        streams > kBothStreams) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or these by rank of a host as in "
                       "0:1,1:3; found '",
                       text, "'"));
    }
    choice.by_rank_[rank] = streams;
  }
  return choice;
}

bool StreamChoice::Has(uint32_t local_rank, bool is_stderr) const {
  const auto at = by_rank_.find(local_rank);
  const uint32_t streams = at == by_rank_.end() ? all_ : at->second;
  return (streams & (is_stderr ? 2u : 1u)) != 0;
}

bool StreamChoice::any() const {
  const auto has_streams = [](const auto& choice) { return choice.second != 0; };
  return all_ != 0 || std::any_of(by_rank_.begin(), by_rank_.end(), has_streams);
}

uint32_t CountVisibleGpus(absl::string_view visible) {
  uint32_t count = 0;
  for (absl::string_view name : absl::StrSplit(visible, ',', absl::SkipEmpty())) {
    name = absl::StripAsciiWhitespace(name);
    if (name.empty() || name == "NoDevFiles" || name == "none" || name == "void" || name.front() == '-') break;
    ++count;
  }
  return count;
}

absl::StatusOr<LaunchPlan> PlanLaunch(const LaunchFlags& flags, const LaunchFacts& facts) {
  return Planner(flags, facts).Plan();
}

}  // namespace trainyard::client
