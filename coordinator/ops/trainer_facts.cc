// What a trainer of the current generation went through: started, registered, ready, finished, refused, broken, exited.
// Each may be told twice (a daemon that lost its stream, a trainer that lost its daemon); the second time changes
// nothing.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

v1::FailureRecord MakeFailure(const Rank& rank, v1::FailureRecord::Kind kind, absl::string_view text) {
  v1::FailureRecord failure;
  failure.set_kind(kind);
  failure.set_rank(rank.record.rank());
  failure.set_text(absl::StrCat("rank ", rank.record.rank(), " on ", rank.record.host(), " ", text));
  return failure;
}

void Started(Turn& turn, Job& job, Rank& rank, const v1::TrainerStarted& started) {
  rank.record.set_started(true);
  rank.record.set_pid(started.pid());
  rank.seen_running = true;
  rank.gone.clear();
  job.progress_at = turn.now;
}

void Registered(Turn& turn, Job& job, Rank& rank, const v1::TrainerRegistered& registered) {
  if (rank.record.registered()) return;
  rank.record.set_started(true);
  rank.phase = "joining";
  job.progress_at = turn.now;
  if (registered.spec_digest() == job.head().spec_digest()) {
    rank.record.set_registered(true);
    return;
  }
  FailGeneration(turn, job,
                 MakeFailure(rank, v1::FailureRecord::KIND_DIGEST,
                             absl::StrCat("has another configuration than the job: digest ", registered.spec_digest(),
                                          ", expected ", job.head().spec_digest())));
}

void Ready(Turn& turn, Job& job, Rank& rank, const v1::TrainerReady& ready) {
  // Without a right digest nobody counts as ready; the daemon tells `registered` first, always.
  if (!rank.record.registered() || rank.record.ready()) return;
  rank.record.set_ready(true);
  rank.record.set_first_step(ready.first_step());
  rank.phase = "ready";
  job.progress_at = turn.now;
}

void Broken(Turn& turn, Job& job, Rank& rank, const v1::CollectiveBroken& broken) {
  rank.broke = true;
  FailGeneration(turn, job,
                 MakeFailure(rank, v1::FailureRecord::KIND_COLLECTIVE,
                             absl::StrCat("reports a broken collective at step ", broken.step(), ": ",
                                          broken.message().substr(0, 1024))));
}

}  // namespace

void ApplyTrainerFact(Turn& turn, Job& job, Rank& rank, const v1::Fact& fact) {
  if (rank.exited()) return;  // its exit was the last word
  switch (fact.kind_case()) {
    case v1::Fact::kStarted:
      Started(turn, job, rank, fact.started());
      break;
    case v1::Fact::kRegistered:
      Registered(turn, job, rank, fact.registered());
      break;
    case v1::Fact::kReady:
      Ready(turn, job, rank, fact.ready());
      break;
    case v1::Fact::kFinished:
      rank.record.set_finished(true);
      rank.record.set_stopped(fact.finished().stopped());
      rank.record.set_finished_step(fact.finished().step());
      rank.last_step = std::max(rank.last_step, fact.finished().step());
      break;
    case v1::Fact::kRefused:
      FailGeneration(turn, job,
                     MakeFailure(rank, v1::FailureRecord::KIND_REFUSED,
                                 absl::StrCat("refused the job: ", fact.refused().message().substr(0, 4096))));
      break;
    case v1::Fact::kBroken:
      Broken(turn, job, rank, fact.broken());
      break;
    case v1::Fact::kExited:
      RankExited(turn, job, rank, fact.exited());
      break;
    default:
      turn.Warn(absl::StrCat("a fact of an unknown kind from ", rank.record.host(), "; is its daemon newer?"));
      return;
  }
  turn.SaveRank(job, rank.record.rank());
}

}  // namespace trainyard
