#include "coordinator/policy/queue_quota.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/plural.h"

namespace trainyard {
namespace {

// Returns how much a job that already uses `own` may use under a limit. This is at least `own`, because a lowered limit
// takes nothing away.
uint64_t RestOf(const std::optional<uint32_t>& limit, uint64_t used, uint64_t own) {
  if (!limit.has_value()) return UINT64_MAX;
  const uint64_t others = used - std::min(used, own);
  return std::max<uint64_t>(own, *limit - std::min<uint64_t>(*limit, others));
}

std::string Describe(const WaitingJob& job, uint64_t used, uint64_t limit, absl::string_view what,
                     absl::string_view key) {
  const std::string pool = job.pool == kOtherNamespaces ? "the namespaces that are not listed use "
                                                        : absl::StrCat("namespace ", job.pool, " uses ");
  return absl::StrCat("waits for its quota: ", pool, used, " of ", limit, " ", what, " (queue.namespaces.", key,
                      "), and the job needs ", MinRanks(job.placement));
}

}  // namespace

void RemoveUse(PoolUse& use, const PoolUse& part) {
  use.slots -= std::min(use.slots, part.slots);
  use.gpus -= std::min(use.gpus, part.gpus);
  use.running -= std::min(use.running, part.running);
}

void AddStart(PoolUse& use, const WaitingJob& job, uint64_t ranks) {
  if (job.continues) {
    RemoveUse(use, {.slots = job.had_ranks, .gpus = job.wants_gpus ? job.had_ranks : 0, .running = 0});
  } else {
    ++use.running;
  }
  use.slots += ranks;
  use.gpus += job.wants_gpus ? ranks : 0;
}

QuotaDecision DecideQuota(const QueueRules& rules, const PoolUse& use, const WaitingJob& job) {
  const NamespaceRules& limits = RulesOf(rules, job.pool);
  const uint32_t min = MinRanks(job.placement);
  const uint64_t own = job.continues ? job.had_ranks : 0;
  if (limits.max_running.has_value() && !job.continues && use.running >= *limits.max_running) {
    return {.ranks = 0,
            .reason = absl::StrCat(
                "waits for its quota: ", Plural(use.running, "job"), " of ",
                job.pool == kOtherNamespaces ? "namespaces that are not listed" : absl::StrCat("namespace ", job.pool),
                use.running == 1 ? " runs" : " run", ", and the limit is ", *limits.max_running,
                " (queue.namespaces.max_running)"),
            .never = *limits.max_running == 0};
  }
  const uint64_t slots = RestOf(limits.max_slots, use.slots, own);
  if (slots < min) {
    return {.ranks = 0,
            .reason = Describe(job, use.slots, *limits.max_slots, "slots", "max_slots"),
            .never = *limits.max_slots < min};
  }
  uint64_t ranks = std::min<uint64_t>(job.placement.ranks, slots);
  if (job.wants_gpus) {
    const uint64_t gpus = RestOf(limits.max_gpus, use.gpus, own);
    if (gpus < min) {
      return {.ranks = 0,
              .reason = absl::StrCat(Describe(job, use.gpus, *limits.max_gpus, "GPUs", "max_gpus"),
                                     job.placement.needs_gpu ? "" : ", as resources.device of the job is not cpu"),
              .never = *limits.max_gpus < min};
    }
    ranks = std::min(ranks, gpus);
  }
  // The ranks of a group stay together; the smallest number of ranks is a multiple of the group.
  ranks -= ranks % std::max(1u, job.placement.group);
  return {.ranks = static_cast<uint32_t>(std::max<uint64_t>(ranks, min)), .reason = "", .never = false};
}

}  // namespace trainyard
