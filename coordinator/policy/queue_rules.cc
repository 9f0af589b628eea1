#include "coordinator/policy/queue_rules.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "spec/validate.h"

namespace trainyard {
namespace {

std::string KeyOf(const std::string& pool, absl::string_view key) {
  return absl::StrCat("queue.namespaces.", key, " of ", pool == kOtherNamespaces ? "\"*\"" : pool);
}

}  // namespace

void CheckQueueConfig(const v1::QueueConfig& config, Problems* problems) {
  std::set<std::string> names;
  for (int i = 0; i < config.namespaces_size(); ++i) {
    const v1::NamespaceConfig& entry = config.namespaces(i);
    const std::string at = absl::StrCat("queue.namespaces[", i, "]");
    if (entry.has_name() && entry.name() != kOtherNamespaces && !IsJobName(entry.name())) {
      problems->AddError({}, absl::StrCat(at, ".name"),
                         absl::StrCat("must consist of 1 to 63 characters a-z, 0-9 and '-', starting with a letter, or "
                                      "be \"*\"; found '",
                                      entry.name().substr(0, 80), "'"));
    }
    if (entry.has_name() && !names.insert(entry.name()).second) {
      problems->AddError({}, absl::StrCat(at, ".name"),
                         absl::StrCat("names '", entry.name().substr(0, 80), "' a second time; remove one of the two"));
    }
  }
  if (config.only_listed() && names.contains(kOtherNamespaces)) {
    problems->AddError(
        {}, "queue.only_listed",
        "refuses the namespaces that are not listed, but \"*\" gives them limits; remove one of the two");
  }
  if (config.only_listed() && names.empty()) {
    problems->AddError({}, "queue.only_listed",
                       "refuses every job, because queue.namespaces is empty; list the namespaces");
  }
}

QueueRules MakeQueueRules(const v1::QueueConfig& config) {
  QueueRules rules{.overtake = absl::Seconds(config.overtake_s()),
                   .max_queued = config.max_queued(),
                   .only_listed = config.only_listed(),
                   .namespaces = {},
                   .preemption = config.preemption().enabled(),
                   .min_priority_difference = config.preemption().min_priority_difference(),
                   .min_run = absl::Seconds(config.preemption().min_run_s()),
                   .preempts_commands = config.preemption().commands()};
  for (const v1::NamespaceConfig& entry : config.namespaces()) {
    NamespaceRules& space = rules.namespaces[entry.name()];
    space.weight_milli = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(entry.weight() * 1'000)));
    if (entry.has_max_slots()) space.max_slots = entry.max_slots();
    if (entry.has_max_gpus()) space.max_gpus = entry.max_gpus();
    if (entry.has_max_running()) space.max_running = entry.max_running();
    if (entry.has_max_queued()) space.max_queued = entry.max_queued();
    space.max_priority = entry.max_priority();
    space.preempts = entry.preempts();
    space.preemptible = entry.preemptible();
  }
  return rules;
}

std::string PoolOf(const QueueRules& rules, const std::string& name) {
  if (rules.namespaces.contains(name) || !rules.namespaces.contains(kOtherNamespaces)) return name;
  return kOtherNamespaces;
}

const NamespaceRules& RulesOf(const QueueRules& rules, const std::string& pool) {
  static const auto* unlimited = new NamespaceRules;
  const auto found = rules.namespaces.find(pool);
  return found == rules.namespaces.end() ? *unlimited : found->second;
}

std::string ProblemOfPriority(const QueueRules& rules, const std::string& name, uint32_t priority) {
  const std::string pool = PoolOf(rules, name);
  const uint32_t max = RulesOf(rules, pool).max_priority;
  if (priority <= max) return "";
  return absl::StrCat("priority ", priority, " is above ", max, ", the limit of namespace ", name, " (",
                      KeyOf(pool, "max_priority"), ")");
}

absl::Status CheckSubmission(const QueueRules& rules, const SubmissionFacts& facts) {
  std::vector<std::string> problems;
  if (rules.only_listed && !rules.namespaces.contains(facts.name)) {
    std::vector<std::string> names;
    for (const auto& [name, space] : rules.namespaces) names.push_back(name);
    problems.push_back(absl::StrCat("namespace ", facts.name,
                                    " is not listed by the coordinator (queue.only_listed); choose one of ",
                                    JoinFirst(names, 8)));
  }
  const std::string pool = PoolOf(rules, facts.name);
  const NamespaceRules& space = RulesOf(rules, pool);
  if (std::string wrong = ProblemOfPriority(rules, facts.name, facts.priority); !wrong.empty()) {
    problems.push_back(std::move(wrong));
  }
  if (space.max_slots.has_value() && facts.min_ranks > *space.max_slots) {
    problems.push_back(absl::StrCat("the job needs ", Plural(facts.min_ranks, "slot"), ", and namespace ", facts.name,
                                    " may use ", *space.max_slots, " (", KeyOf(pool, "max_slots"), ")"));
  }
  if (space.max_gpus.has_value() && facts.needs_gpu && facts.min_ranks > *space.max_gpus) {
    problems.push_back(absl::StrCat("the job needs ", Plural(facts.min_ranks, "GPU"), ", and namespace ", facts.name,
                                    " may use ", *space.max_gpus, " (", KeyOf(pool, "max_gpus"), ")"));
  }
  if (space.max_running == 0u) {
    problems.push_back(
        absl::StrCat("namespace ", facts.name, " may run no job (", KeyOf(pool, "max_running"), " is 0)"));
  }
  if (!problems.empty()) return absl::FailedPreconditionError(absl::StrJoin(problems, "\n"));
  if (facts.queued >= rules.max_queued) {
    return absl::ResourceExhaustedError(absl::StrCat(Plural(facts.queued, "job waits", "jobs wait"),
                                                     ", and the limit is ", rules.max_queued,
                                                     " (queue.max_queued); wait, or cancel some"));
  }
  if (space.max_queued.has_value() && facts.queued_in_pool >= *space.max_queued) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Plural(facts.queued_in_pool, "job waits", "jobs wait"), " in namespace ", facts.name, ", and the limit is ",
        *space.max_queued, " (", KeyOf(pool, "max_queued"), "); wait, or cancel some"));
  }
  if (facts.is_new_namespace && facts.namespaces >= kNamespacesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        facts.namespaces, " namespaces have unfinished jobs, which is the limit; use one of them, or wait"));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
