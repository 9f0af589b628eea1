// The core's dealings with the coordinator: dialing, hello, facts, reports, heartbeats.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/plain_text.h"
#include "worker/agent/core.h"
#include "worker/agent/text.h"

namespace trainyard::agent {
namespace {

// From the dial to the welcome. Longer means a coordinator that accepts connections and does nothing.
constexpr absl::Duration kWelcomeWait = absl::Seconds(5);
// A predecessor of this name that was just killed needs no longer to be missed.
constexpr absl::Duration kNameTakenWait = absl::Seconds(10);
constexpr absl::Duration kHeartbeatDefault = absl::Seconds(1);
// A disk that has refused is tried again so often.
constexpr absl::Duration kDiskRetry = absl::Seconds(10);
// Facts that nobody waits for go with the next one that somebody does, or after this time: while a group forms each
// rank is started, registers and is ready in turn, and a message costs the coordinator more than what is in it.
constexpr absl::Duration kUnhurriedWait = absl::Milliseconds(200);
constexpr size_t kTroubleBytesMax = 4096;
// A write that takes longer hangs.
constexpr absl::Duration kDiskPatience = absl::Seconds(10);

}  // namespace

void Core::DialWhenDue() {
  if (left_) return;
  if (stream_ == Stream::kDialing) {
    absl::Time give_up = dialed_at_ + kWelcomeWait;
    if (now_ < give_up) return WakeBy(give_up);
    dialed_at_ = absl::InfiniteFuture();  // once
    Emit(HangUp{absl::StrCat("no welcome within ", absl::FormatDuration(kWelcomeWait))});
  }
  if (stream_ != Stream::kDown) return;
  if (now_ < dial_at_) return WakeBy(dial_at_);
  stream_ = Stream::kDialing;
  dialed_at_ = now_;
  WakeBy(now_ + kWelcomeWait);
  ++counts_.dials;
  Emit(Dial{MakeHello()});
}

v1::Hello Core::MakeHello() const {
  v1::Hello hello;
  hello.set_protocol(limits::kProtocol);
  hello.set_oldest_protocol(limits::kOldestProtocol);
  hello.set_outbox_id(outbox_.id());
  hello.set_host(options_.host);
  hello.set_incarnation(options_.incarnation.value());
  hello.set_slots(options_.slots);
  *hello.mutable_inventory() = options_.inventory;
  hello.set_applied_revision(applied_revision_);
  // Whom it belonged to is what a coordinator of another cluster would refuse it for.
  if (!options_.adopt_cluster) hello.set_cluster_id(cluster_id_);
  // One that has ended is named until its exit is told: the fact follows, and to leave it out would say "lost".
  for (const auto& [id, trainer] : trainers_) {
    if (trainer.exit_reported) continue;
    v1::RunningTrainer* running = hello.add_trainers();
    *running->mutable_key() = ToProto(id);
    running->set_pid(trainer.pid);
    running->set_ready(trainer.ready);
  }
  return hello;
}

void Core::On(Welcomed event) {
  const v1::Welcome& welcome = event.welcome;
  if (absl::Status agreed = CheckProtocol(welcome); !agreed.ok()) {
    left_ = true;
    Emit(Log{Log::Level::kError, absl::StrCat(agreed.message(), ". Trainers stay.")});
    return Emit(Leave{.exit_code = 1});
  }
  stream_ = Stream::kUp;
  failed_dials_ = 0;
  last_failure_.clear();
  name_taken_since_ = absl::InfiniteFuture();
  desired_since_welcome_ = false;
  heartbeat_interval_ = welcome.heartbeat_ms() > 0 ? absl::Milliseconds(welcome.heartbeat_ms()) : kHeartbeatDefault;
  // What keeps this host from running anything is known before anything is placed here.
  heartbeat_at_ = trouble_.empty() ? now_ + heartbeat_interval_ : now_;
  JoinCluster(welcome.cluster_id());
  LogInfo(absl::StrCat("attached to the coordinator at ", options_.coordinator, " as ", options_.host));
  ResendEnds(welcome.acked_fact());
  Acknowledge(welcome.acked_fact());
  // Steps go before facts, so that a job's last steps are known before its end.
  SendReports(/*only_due=*/false);
  facts_due_ = now_;
}

void Core::JoinCluster(const std::string& cluster_id) {
  if (cluster_id != cluster_id_) {
    if (!cluster_id_.empty()) {
      LogWarning(absl::StrCat("the coordinator at ", options_.coordinator, " is of another cluster (", cluster_id,
                              ") than the one before (", cluster_id_, "): trainers it does not know will be ended"));
    }
    cluster_id_ = cluster_id;
    Emit(RememberCluster{cluster_id_});
  }
  std::string before = outbox_.cluster_id();
  size_t dropped = outbox_.BelongTo(cluster_id);
  counts_.facts_dropped += dropped;
  if (dropped > 0) {
    LogWarning(absl::StrCat(dropped, " facts of cluster ", before, " are dropped: this host belongs to ", cluster_id,
                            " now, which knows nothing of its jobs"));
  }
}

// Both sides name the range they speak; the coordinator answers with the newest of both.
absl::Status Core::CheckProtocol(const v1::Welcome& welcome) const {
  uint32_t protocol = std::max(1u, welcome.protocol());
  if (protocol >= limits::kOldestProtocol && protocol <= limits::kProtocol) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the coordinator at ", options_.coordinator, " speaks protocol ",
                                                    protocol, ", this daemon ", limits::kOldestProtocol, " to ",
                                                    limits::kProtocol, "; install the coordinator's version here"));
}

void Core::StoreFactsWhenDue() {
  if (try_disk_at_ <= now_) {
    try_disk_at_ = absl::InfiniteFuture();
    outbox_.TryDiskAgain();
  }
  WakeBy(try_disk_at_);
  std::optional<Outbox::Write> write = outbox_.TakeWrite();
  if (write.has_value()) {
    storing_since_ = now_;
    Emit(StoreFacts{std::move(write->bytes), write->replace});
  }
  JudgeDisk();
}

// A write that hangs would hold back all that there is to tell: what happens goes on in memory, as where the disk
// refuses, and is written again as a whole when it answers after all.
void Core::JudgeDisk() {
  if (storing_since_ == absl::InfiniteFuture() || disk_hangs_) return;
  const absl::Time patience_ends = storing_since_ + kDiskPatience;
  if (now_ < patience_ends) return WakeBy(patience_ends);
  disk_hangs_ = true;
  ++counts_.outbox_errors;
  if (!outbox_.Abandon(options_.make_outbox_id())) return;
  LogWarning(absl::StrCat("the outbox's disk has not answered for ", absl::FormatDuration(kDiskPatience),
                          ": facts are kept in memory until it does, at most ", limits::kOutboxBytes >> 20,
                          " MiB; trainers keep what they reported until the coordinator has it"));
  if (stream_ != Stream::kDown) Emit(HangUp{"the outbox goes on in memory, under a new id"});
}

void Core::On(FactsStored event) {
  storing_since_ = absl::InfiniteFuture();
  if (std::exchange(disk_hangs_, false)) LogInfo("the outbox's disk answers again");
  const bool was_on_disk = outbox_.on_disk();
  if (event.status.ok()) {
    outbox_.Stored();
    if (!was_on_disk && outbox_.on_disk()) LogInfo("the outbox is on disk again");
    return;
  }
  ++counts_.outbox_errors;
  try_disk_at_ = now_ + kDiskRetry;
  if (!outbox_.Failed(options_.make_outbox_id())) return;
  LogWarning(absl::StrCat("the outbox cannot be written (", event.status.message(),
                          "): facts are kept in memory and the disk is tried every ", absl::FormatDuration(kDiskRetry),
                          "; trainers keep what they reported until the coordinator has it"));
  // A hello tells the id under which they are sent from here on.
  if (stream_ != Stream::kDown) Emit(HangUp{"the outbox goes on in memory, under a new id"});
}

void Core::On(HomeLooked event) {
  if (event.socket_is_new) LogWarning("the trainers' socket was gone and has been made again");
  if (event.state_is_new) {
    LogWarning("the state folder was gone and has been made again; what earlier trainers printed is lost");
    // Whatever was written there is gone, and what waits is in memory: all of it is written again.
    try_disk_at_ = now_;
    if (!cluster_id_.empty()) Emit(RememberCluster{cluster_id_});
  }
  if (event.trouble == trouble_) return;
  if (event.trouble.empty()) {
    LogInfo("trainers can be started on this host again");
  } else {
    Emit(Log{Log::Level::kError, absl::StrCat("nothing can be started on this host: ", event.trouble,
                                              ". Trainers that run go on, ", outbox_.size(),
                                              " facts wait for the coordinator in memory, and this daemon tries every "
                                              "second to mend it")});
  }
  trouble_ = std::move(event.trouble);
  if (stream_ == Stream::kUp) heartbeat_at_ = now_;
}

// An end that the coordinator had, though we were never told so, was still named in our hello as a trainer that runs:
// told once more, or the coordinator would keep its slot for it.
void Core::ResendEnds(uint64_t acked) {
  std::vector<const Trainer*> ended;
  for (const auto& [id, trainer] : trainers_) {
    if (trainer.exited.has_value() && trainer.exit_in_outbox && !trainer.exit_reported) ended.push_back(&trainer);
  }
  for (const Trainer* trainer : ended) {
    if (!outbox_.HasExit(trainer->id, acked)) continue;
    v1::Fact fact;
    *fact.mutable_exited() = *trainer->exited;
    AddFact(*trainer, std::move(fact), {.trainer = trainer->id, .is_exit = true});
  }
}

void Core::On(FactsAcknowledged event) { Acknowledge(event.sequence); }

void Core::Acknowledge(uint64_t sequence) {
  std::map<TrainerId, uint64_t> reported;
  for (const Outbox::Origin& origin : outbox_.Acknowledge(sequence)) {
    auto at = trainers_.find(origin.trainer);
    if (at == trainers_.end()) continue;
    Trainer& trainer = at->second;
    if (origin.is_exit) {
      trainer.exit_reported = true;
      Emit(MarkReported{trainer.id});
    }
    if (origin.trainer_sequence > trainer.last_fact_durable) {
      trainer.last_fact_durable = origin.trainer_sequence;
      reported[trainer.id] = origin.trainer_sequence;
    }
  }
  for (const auto& [id, trainer_sequence] : reported) {
    const Trainer& trainer = trainers_.at(id);
    if (trainer.link == LinkId()) continue;
    v1::LinkMessage message;
    message.mutable_ack()->set_sequence(trainer_sequence);
    Emit(SendLink{trainer.link, std::move(message)});
  }
}

void Core::On(SessionEnded event) {
  bool was_up = stream_ == Stream::kUp;
  stream_ = Stream::kDown;
  heartbeat_at_ = absl::InfiniteFuture();
  outbox_.Rewind();
  for (auto& [id, trainer] : trainers_) trainer.reports.Rewind();

  // 50 ms, doubling up to a second, each between half and all of it. A stream that was up is tried again at once.
  absl::Duration wait = limits::kReconnectMin;
  for (int i = 0; i < failed_dials_ && wait < limits::kReconnectMax; ++i) wait *= 2;
  wait = std::min(wait, limits::kReconnectMax) * (0.5 + 0.5 * options_.random());
  if (!was_up) ++failed_dials_;
  dial_at_ = now_ + wait;
  if (leaving_.has_value()) return;

  std::string text = absl::StrCat(absl::StatusCodeToString(event.status.code()), ": ", event.status.message());
  bool final = absl::IsFailedPrecondition(event.status) || absl::IsAborted(event.status);
  if (absl::IsAlreadyExists(event.status)) {
    name_taken_since_ = std::min(name_taken_since_, now_);
    final = now_ - name_taken_since_ >= kNameTakenWait;
  }
  if (final) {
    left_ = true;
    Emit(Log{Log::Level::kError, absl::StrCat("the coordinator at ", options_.coordinator,
                                              " refuses this daemon: ", text, ". Trainers stay.")});
    Emit(Leave{.exit_code = 1});
    return;
  }
  // Said once a reason, not once an attempt.
  if (text == last_failure_) return;
  last_failure_ = text;
  LogWarning(was_up ? absl::StrCat("lost the coordinator at ", options_.coordinator, " (", text,
                                   "); trainers go on, trying again every 50 ms to 1 s")
                    : absl::StrCat("cannot attach to the coordinator at ", options_.coordinator, " (", text,
                                   "); trying again every 50 ms to 1 s"));
}

void Core::AddFact(const Trainer& trainer, v1::Fact fact, const Outbox::Origin& origin) {
  *fact.mutable_key() = ToProto(trainer.id);
  MakeValidUtf8(&fact);
  if (fact.time_unix_ms() == 0) fact.set_time_unix_ms(absl::ToUnixMillis(now_));
  ++counts_.facts;
  outbox_.Add(std::move(fact), origin);
}

void Core::SendFactsWhenDue() {
  if (stream_ != Stream::kUp || !outbox_.has_unsent()) return;
  if (facts_due_ == absl::InfiniteFuture()) facts_due_ = now_ + kUnhurriedWait;
  if (outbox_.IsUrgent() || facts_due_ <= now_) return SendFacts();
  WakeBy(facts_due_);
}

void Core::SendFacts() {
  facts_due_ = absl::InfiniteFuture();
  for (v1::FactBatch& batch : outbox_.TakeUnsent()) {
    v1::AgentMessage message;
    *message.mutable_facts() = std::move(batch);
    Emit(SendUp{std::move(message)});
  }
}

void Core::FlushReports(Trainer& trainer) {
  if (stream_ != Stream::kUp) return;
  for (v1::RankReport& report : trainer.reports.Take(now_)) {
    v1::AgentMessage message;
    *message.mutable_reports()->add_reports() = std::move(report);
    Emit(SendUp{std::move(message)});
  }
}

void Core::SendReports(bool only_due) {
  if (stream_ != Stream::kUp) return;
  for (auto& [id, trainer] : trainers_) {
    if (!only_due || trainer.reports.due() <= now_) FlushReports(trainer);
    WakeBy(trainer.reports.due());
  }
}

void Core::BeatWhenDue() {
  if (stream_ != Stream::kUp) return;
  if (heartbeat_at_ <= now_) {
    SendFacts();  // what is told of a revision goes before the word that it was applied
    v1::AgentMessage message;
    message.mutable_heartbeat()->set_applied_revision(applied_revision_);
    message.mutable_heartbeat()->set_draining(draining_);
    message.mutable_heartbeat()->set_trouble(ValidUtf8(trouble_, kTroubleBytesMax));
    Emit(SendUp{std::move(message)});
    heartbeat_at_ = now_ + heartbeat_interval_;
    SendPaths();
  }
  WakeBy(heartbeat_at_);
}

}  // namespace trainyard::agent
