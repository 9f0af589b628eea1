// The core's communication with the coordinator: dialing, hello, facts, reports, heartbeats.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/api_version.h"
#include "common/limits.h"
#include "common/network.h"
#include "common/plain_text.h"
#include "common/version.h"
#include "worker/agent/core.h"
#include "worker/agent/text.h"

namespace trainyard::agent {
namespace {

// The longest time from a dial to the welcome. If it takes longer, the coordinator accepts connections but does nothing
// else.
constexpr absl::Duration kWelcomeWait = absl::Seconds(5);
// How long a dial may fail because the name is in use: after this time the coordinator has noticed if an earlier daemon
// of this name was killed.
constexpr absl::Duration kNameTakenWait = absl::Seconds(10);
constexpr absl::Duration kHeartbeatDefault = absl::Seconds(1);
// How often to retry a disk that has refused a write.
constexpr absl::Duration kDiskRetry = absl::Seconds(10);
// Facts that are not urgent are sent with the next urgent one, or after this time. While a group forms, each rank
// reports in turn that it was started, has registered and is ready. Sent together, these facts cost the coordinator
// less.
constexpr absl::Duration kNonUrgentWait = absl::Milliseconds(200);
constexpr size_t kTroubleBytesMax = 4096;
// A write that takes longer counts as hanging.
constexpr absl::Duration kDiskPatience = absl::Seconds(10);

}  // namespace

void Core::DialWhenDue() {
  if (left_) return;
  if (stream_ == Stream::kDialing) {
    absl::Time give_up = dialed_at_ + kWelcomeWait;
    if (now_ < give_up) return WakeBy(give_up);
    dialed_at_ = absl::InfiniteFuture();  // so that the core hangs up only once
    Emit(HangUp{absl::StrCat("it sent no welcome within ", absl::FormatDuration(kWelcomeWait))});
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
  hello.mutable_inventory()->set_data_address(data_address_);
  hello.set_applied_revision(applied_revision_);
  // A coordinator of another cluster refuses a hello that contains this cluster id.
  if (!options_.adopt_cluster) hello.set_cluster_id(cluster_id_);
  // A trainer that has ended is named until its exit is reported: the fact follows, and leaving the trainer out would
  // make the coordinator count it as lost. A coordinator of another cluster accepts a host whose trainers have ended.
  for (const auto& [id, trainer] : trainers_) {
    if (trainer.exit_reported) continue;
    v1::RunningTrainer* running = hello.add_trainers();
    *running->mutable_key() = ToProto(id);
    running->set_pid(trainer.pid);
    running->set_ready(trainer.ready);
    running->set_ended(trainer.process == Process::kEnded);
  }
  return hello;
}

void Core::On(Welcomed event) {
  const v1::Welcome& welcome = event.welcome;
  if (absl::Status supported = CheckProtocol(welcome); !supported.ok()) {
    left_ = true;
    Emit(Log{Log::Level::kError, absl::StrCat(supported.message(), ". Trainers continue to run.")});
    return Emit(Leave{.exit_code = 1});
  }
  stream_ = Stream::kUp;
  failed_dials_ = 0;
  last_failure_.clear();
  name_taken_since_ = absl::InfiniteFuture();
  desired_since_welcome_ = false;
  heartbeat_interval_ = welcome.heartbeat_ms() > 0 ? absl::Milliseconds(welcome.heartbeat_ms()) : kHeartbeatDefault;
  // Before the coordinator places trainers here, it must know that this host cannot start any.
  heartbeat_at_ = trouble_.empty() ? now_ + heartbeat_interval_ : now_;
  JoinCluster(welcome.cluster_id());
  LogInfo(absl::StrCat("attached to the coordinator at ", options_.coordinator, " as ", options_.host));
  WarnOfVersion(welcome.version());
  ResendExits(welcome.acked_fact());
  Acknowledge(welcome.acked_fact());
  // Steps are sent before facts, so that a job's last steps are known before its end.
  SendReports(/*only_due=*/false);
  facts_due_ = now_;
}

void Core::JoinCluster(const std::string& cluster_id) {
  if (cluster_id != cluster_id_) {
    if (!cluster_id_.empty()) {
      LogWarning(absl::StrCat("the coordinator at ", options_.coordinator, " belongs to another cluster (", cluster_id,
                              ") than the previous one (", cluster_id_,
                              "): trainers that it does not know will be ended"));
    }
    cluster_id_ = cluster_id;
    Emit(RememberCluster{cluster_id_});
  }
  std::string previous = outbox_.cluster_id();
  size_t dropped = outbox_.SetCluster(cluster_id);
  counts_.facts_dropped += dropped;
  if (dropped > 0) {
    LogWarning(absl::StrCat(dropped, " facts of cluster ", previous, " are dropped: this host belongs to ", cluster_id,
                            " now, which does not know their jobs"));
  }
}

// The hello contains the range of protocols that the daemon supports; the coordinator answers with the newest protocol
// that both support.
absl::Status Core::CheckProtocol(const v1::Welcome& welcome) const {
  uint32_t protocol = std::max(1u, welcome.protocol());
  if (protocol >= limits::kOldestProtocol && protocol <= limits::kProtocol) return absl::OkStatus();
  const bool daemon_is_older = protocol > limits::kProtocol;
  return absl::FailedPreconditionError(absl::StrCat(
      "the coordinator at ", options_.coordinator, " has version ",
      welcome.version().empty() ? "unknown" : welcome.version().substr(0, 64), " and uses protocol ", protocol,
      "; this daemon has version ", kVersion, " and supports ", limits::kOldestProtocol, " to ", limits::kProtocol,
      ": ", daemon_is_older ? "install the coordinator's version here" : "upgrade the coordinator"));
}

void Core::WarnOfVersion(const std::string& version) {
  if (version.empty() || version == coordinator_version_) return;
  coordinator_version_ = version;
  if (IsSameRelease(version, kVersion)) return;
  LogWarning(absl::StrCat("the coordinator at ", options_.coordinator, " has version ", version.substr(0, 64),
                          " and this daemon version ", kVersion,
                          "; they work together, but install the same version on all hosts when you can"));
}

void Core::StoreFactsWhenDue() {
  if (try_disk_at_ <= now_) {
    try_disk_at_ = absl::InfiniteFuture();
    outbox_.RetryDisk();
  }
  WakeBy(try_disk_at_);
  std::optional<Outbox::Write> write = outbox_.TakeWrite();
  if (write.has_value()) {
    storing_since_ = now_;
    Emit(StoreFacts{std::move(write->bytes), write->replace});
  }
  DetectHangingDisk();
}

// A write that hangs would delay all facts. Facts therefore stay in memory, as after a failed write, and all of them
// are written again when the disk answers.
void Core::DetectHangingDisk() {
  if (storing_since_ == absl::InfiniteFuture() || disk_hangs_) return;
  const absl::Time patience_ends = storing_since_ + kDiskPatience;
  if (now_ < patience_ends) return WakeBy(patience_ends);
  disk_hangs_ = true;
  ++counts_.outbox_errors;
  if (!outbox_.Abandon(options_.make_outbox_id())) return;
  LogWarning(absl::StrCat("the outbox's disk has not answered for ", absl::FormatDuration(kDiskPatience),
                          ": facts are kept in memory until it answers, at most ", limits::kOutboxBytes >> 20,
                          " MiB; trainers keep what they reported until the coordinator has it"));
  if (stream_ != Stream::kDown) Emit(HangUp{"the outbox continues in memory, under a new id"});
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
                          "): facts are kept in memory and the disk is retried every ",
                          absl::FormatDuration(kDiskRetry),
                          "; trainers keep what they reported until the coordinator has it"));
  // The hello contains the id under which the facts are sent from now on.
  if (stream_ != Stream::kDown) Emit(HangUp{"the outbox continues in memory, under a new id"});
}

void Core::On(HomeChecked event) {
  if (event.socket_is_new) LogWarning("the trainers' socket had disappeared and was recreated");
  if (event.state_is_new) {
    LogWarning("the state folder had disappeared and was recreated; the output of earlier trainers is lost");
    // The outbox's file is lost, but the waiting facts are in memory: write all of these facts again.
    try_disk_at_ = now_;
    if (!cluster_id_.empty()) Emit(RememberCluster{cluster_id_});
  }
  if (event.trouble == trouble_) return;
  if (event.trouble.empty()) {
    LogInfo("trainers can be started on this host again");
  } else {
    Emit(Log{Log::Level::kError,
             absl::StrCat("no trainer can be started on this host: ", event.trouble, ". Running trainers continue, ",
                          outbox_.size(),
                          " facts wait for the coordinator in memory, and this daemon retries every second")});
  }
  trouble_ = std::move(event.trouble);
  if (stream_ == Stream::kUp) heartbeat_at_ = now_;
}

// The coordinator may have received an exit whose acknowledgement was lost; then the hello has named that trainer as
// running. Its exit is sent once more, because the coordinator would otherwise reserve a slot for the trainer.
void Core::ResendExits(uint64_t acked) {
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
    Emit(SendLinkMessage{trainer.link, std::move(message)});
  }
}

// The address of this host may have changed, or its network may have been down when the daemon started. An address that
// this host still has is kept: a host with several addresses must not alternate between them.
void Core::On(AddressFound event) {
  if (event.present_is_valid || event.address.empty() || event.address == data_address_) return;
  if (IsLoopbackHost(event.address)) return;
  LogWarning(absl::StrCat("the data address is ", event.address, " now; it was ", data_address_));
  data_address_ = std::move(event.address);
  data_interface_ = std::move(event.interface);
  if (stream_ == Stream::kDown || left_) return;
  // The hello that was sent has the previous address; the next one has this address.
  dialed_at_ = absl::InfiniteFuture();
  Emit(HangUp{"to announce the new data address"});
}

void Core::On(SessionEnded event) {
  bool was_up = stream_ == Stream::kUp;
  stream_ = Stream::kDown;
  heartbeat_at_ = absl::InfiniteFuture();
  outbox_.Rewind();
  for (auto& [id, trainer] : trainers_) trainer.reports.Rewind();

  // The wait begins at 50 ms and doubles up to a second. It is multiplied by a random factor from a half to one.
  absl::Duration wait = limits::kReconnectMin;
  for (int i = 0; i < failed_dials_ && wait < limits::kReconnectMax; ++i) wait *= 2;
  wait = std::min(wait, limits::kReconnectMax) * (0.5 + 0.5 * options_.random());
  if (!was_up) ++failed_dials_;
  dial_at_ = now_ + wait;
  if (leaving_.has_value()) return;

  std::string text = absl::StrCat(absl::StatusCodeToString(event.status.code()), ": ", event.status.message());
  bool refused = absl::IsFailedPrecondition(event.status) || absl::IsAborted(event.status);
  if (absl::IsAlreadyExists(event.status)) {
    name_taken_since_ = std::min(name_taken_since_, now_);
    refused = now_ - name_taken_since_ >= kNameTakenWait;
  }
  if (refused) {
    left_ = true;
    Emit(Log{Log::Level::kError, absl::StrCat("the coordinator at ", options_.coordinator,
                                              " refuses this daemon: ", text, ". Trainers continue to run.")});
    Emit(Leave{.exit_code = 1});
    return;
  }
  // Logged once for each reason, not for each attempt.
  if (text == last_failure_) return;
  last_failure_ = text;
  LogWarning(was_up ? absl::StrCat("lost the coordinator at ", options_.coordinator, " (", text,
                                   "); trainers continue; retrying every 50 ms to 1 s")
                    : absl::StrCat("cannot attach to the coordinator at ", options_.coordinator, " (", text,
                                   "); retrying every 50 ms to 1 s"));
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
  if (facts_due_ == absl::InfiniteFuture()) facts_due_ = now_ + kNonUrgentWait;
  if (outbox_.IsUrgent() || facts_due_ <= now_) return SendFacts();
  WakeBy(facts_due_);
}

void Core::SendFacts() {
  facts_due_ = absl::InfiniteFuture();
  for (v1::FactBatch& batch : outbox_.TakeUnsent()) {
    v1::AgentMessage message;
    *message.mutable_facts() = std::move(batch);
    Emit(SendToCoordinator{std::move(message)});
  }
}

void Core::FlushReports(Trainer& trainer) {
  if (stream_ != Stream::kUp) return;
  for (v1::RankReport& report : trainer.reports.TakeUnsent(now_)) {
    v1::AgentMessage message;
    *message.mutable_reports()->add_reports() = std::move(report);
    Emit(SendToCoordinator{std::move(message)});
  }
}

void Core::SendReports(bool only_due) {
  if (stream_ != Stream::kUp) return;
  for (auto& [id, trainer] : trainers_) {
    if (!only_due || trainer.reports.due() <= now_) FlushReports(trainer);
    WakeBy(trainer.reports.due());
  }
}

void Core::SendHeartbeatWhenDue() {
  if (stream_ != Stream::kUp) return;
  if (heartbeat_at_ <= now_) {
    SendFacts();  // facts about a revision are sent before the report that it was applied
    v1::AgentMessage message;
    message.mutable_heartbeat()->set_applied_revision(applied_revision_);
    message.mutable_heartbeat()->set_draining(draining_);
    message.mutable_heartbeat()->set_trouble(ValidUtf8(trouble_, kTroubleBytesMax));
    Emit(SendToCoordinator{std::move(message)});
    heartbeat_at_ = now_ + heartbeat_interval_;
    SendPaths();
  }
  WakeBy(heartbeat_at_);
}

}  // namespace trainyard::agent
