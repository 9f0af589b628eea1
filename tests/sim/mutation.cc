#include "tests/sim/mutation.h"

namespace trainyard::sim {
namespace {

struct Row {
  const char* name;
  const char* caught_by;
};

// In the order of the enum Mutation.
constexpr Row kRows[] = {
    {"none", ""},
    {"drop-record", "acknowledged-is-durable core-is-consistent one-generation"},
    {"release-early", "acknowledged-is-durable"},
    {"forge-reports", "one-generation"},
    {"forge-exit", "records-are-true one-generation"},
    {"take-stale", "fenced-changes-nothing"},
    {"start-twice", "rank-once"},
    {"repeat-step", "steps-published-once"},
    {"drop-step", "steps-published-once"},
    {"kill-on-lost-contact", "lost-contact-ends-nothing"},
    {"lose-desired", "progress-after-healing"},
    {"empty-reason", "decisions-have-reasons"},
    {"lose-acks", "memory-is-bounded"},
    {"forget-queued", "core-is-consistent"},
    {"prune-early", "restart-point-is-there"},
    {"claim-slots", "slots-hold"},
    {"cancel-unasked", "outcome-is-deserved"},
    {"give-up-silent", "lost-contact-ends-nothing"},
    {"forge-work", "records-are-true"},
    {"empty-notice", "decisions-have-reasons"},
    {"adopt-nothing", "grants-are-kept"},
    {"adopt-incomplete", "only-whole-saves-are-used"},
    {"forge-ready", "fenced-saves-nothing"},
    {"grant-twice", "one-content-a-step"},
    {"leave-partials", "nothing-is-left-behind"},
    {"ignore-failed-write", "only-whole-saves-are-used"},
    {"ignore-lock", "a-folder-has-one-job"},
    {"use-others", "a-folder-has-one-job"},
    {"claim-saved", "success-is-saved"},
    {"forge-stopped", "hangs-name-their-cause"},
    {"ignore-hangs", "hangs-name-their-cause"},
    {"forget-tensor", "tensor-groups-share-a-host"},
    {"forget-min-ranks", "elastic-size-holds"},
    {"grow-at-once", "elastic-jobs-grow-in-time"},
    {"never-grow", "elastic-jobs-grow-in-time"},
    {"ignore-quotas", "quotas-hold"},
    {"preempt-equal", "preemption-is-deserved"},
    {"overtake-all", "nobody-is-overtaken-for-ever"},
    {"preempt-none", "priorities-are-served"},
    {"resume-paused", "paused-until-resumed"},
};

}  // namespace

const char* NameOf(Mutation mutation) { return kRows[static_cast<int>(mutation)].name; }
const char* CaughtBy(Mutation mutation) { return kRows[static_cast<int>(mutation)].caught_by; }

}  // namespace trainyard::sim
