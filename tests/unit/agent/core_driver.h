// Drives the daemon's core as its event thread does, with a clock that the test advances, and returns the
// effects by type.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/limits.h"
#include "worker/agent/core.h"

namespace trainyard::agent {

// The link of most tests.
inline constexpr LinkId kLink1(1);

inline constexpr char kJob[] = "job23456";

inline TrainerId Rank(uint32_t rank, uint64_t generation = 1) { return {JobId(kJob), Generation(generation), rank}; }

inline v1::DesiredTrainer Desired(const TrainerId& id) {
  v1::DesiredTrainer desired;
  *desired.mutable_key() = ToProto(id);
  desired.set_world_size(2);
  desired.set_local_world_size(2);
  return desired;
}

class CoreDriver {
 public:
  // `disk` is the content of the outbox file that an earlier incarnation left.
  explicit CoreDriver(std::string cluster_id = "", std::string disk = "", bool adopt_cluster = false,
                      bool shares_machine = false)
      : disk_(std::move(disk)) {
    CoreOptions options = {
        .coordinator = "127.0.0.1:7070",
        .host = "h1",
        .incarnation = Incarnation(77),
        .slots = 2,
        .shares_machine = shares_machine,
        .inventory = {},
        .cpus = {0, 1, 2, 5},
        .cluster_id = std::move(cluster_id),
        .adopt_cluster = adopt_cluster,
        .outbox = ReadOutboxFile(disk_).value(),
        .make_outbox_id = [this] { return absl::StrCat("outbox-", ++outboxes_); },
        .make_token = [this] { return absl::StrCat("token-", ++tokens_); },
        .random = [] { return 1.0; },
        .interface_address = [](const std::string& name) -> absl::StatusOr<std::string> {
          if (name == "eth1") return "10.0.0.7";
          return absl::NotFoundError(absl::StrCat("no interface '", name, "'; interfaces of this host: eth1, lo"));
        },
    };
    options.inventory.set_cores(8);
    options.inventory.set_data_address("127.0.0.1");
    core_ = std::make_unique<Core>(std::move(options));
  }

  // Returns the effects of this event only.
  std::vector<Effect>& Handle(Event event) {
    last_ = core_->Handle(std::move(event), clock_.TimeNow());
    // A disk that is not held answers immediately.
    for (size_t i = 0; i < last_.size(); ++i) {
      auto* store = std::get_if<StoreFacts>(&last_[i]);
      if (store == nullptr) continue;
      pending_write_ = *store;
      if (disk_is_held) continue;
      std::vector<Effect> more = core_->Handle(DiskAnswer(), clock_.TimeNow());
      last_.insert(last_.end(), more.begin(), more.end());
    }
    all_.insert(all_.end(), last_.begin(), last_.end());
    return last_;
  }
  // Lets a held disk complete its write.
  void CompleteWrite() { Handle(DiskAnswer()); }
  bool disk_is_held = false;  // true: writes wait for CompleteWrite
  absl::Status disk_error;
  const std::string& disk() const { return disk_; }
  void Advance(absl::Duration by) { clock_.AdvanceTime(by); }
  // Ticks whenever the core requests it, as the daemon's thread does, until `by` has passed.
  void Run(absl::Duration by) {
    absl::Time end = clock_.TimeNow() + by;
    while (core_->NextWake() <= end) {
      clock_.AdvanceTime(std::max(absl::ZeroDuration(), core_->NextWake() - clock_.TimeNow()));
      Handle(Tick{});
    }
    clock_.AdvanceTime(end - clock_.TimeNow());
  }
  absl::Time now() { return clock_.TimeNow(); }
  Core& core() { return *core_; }

  void Attach(uint64_t acked_fact = 0, const std::string& cluster = "c1") {
    Handle(AllFound{});
    Handle(Welcome(acked_fact, cluster));
  }
  static Welcomed Welcome(uint64_t acked_fact = 0, const std::string& cluster = "c1") {
    Welcomed welcomed;
    welcomed.welcome.set_protocol(limits::kProtocol);
    welcomed.welcome.set_cluster_id(cluster);
    welcomed.welcome.set_heartbeat_ms(1000);
    welcomed.welcome.set_acked_fact(acked_fact);
    return welcomed;
  }
  static DesiredStateReceived State(uint64_t revision, const std::vector<v1::DesiredTrainer>& trainers) {
    DesiredStateReceived received;
    received.desired.set_revision(revision);
    for (const v1::DesiredTrainer& trainer : trainers) *received.desired.add_trainers() = trainer;
    return received;
  }
  LinkOpened Open(LinkId link, const TrainerId& id, bool reconnect = false) {
    LinkOpened opened = {.link = link, .registration = {}};
    *opened.registration.mutable_key() = ToProto(id);
    opened.registration.set_token(TokenOf(id));
    opened.registration.set_reconnect(reconnect);
    return opened;
  }
  static LinkFact Saved(LinkId link, uint64_t sequence, uint64_t step) {
    LinkFact fact = {.link = link, .fact = {}};
    fact.fact.set_sequence(sequence);
    fact.fact.mutable_saved()->set_step(step);
    return fact;
  }
  static LinkReport Steps(LinkId link, uint64_t first, uint64_t last) {
    LinkReport report = {.link = link, .report = {}};
    for (uint64_t step = first; step <= last; ++step) report.report.add_steps()->set_step(step);
    report.report.set_last_step(last);
    report.report.set_phase("train");
    return report;
  }
  static ProcessEnded Ended(const TrainerId& id, int code) {
    ProcessEnded ended = {.id = id, .exited = {}};
    ended.exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
    ended.exited.set_code(code);
    return ended;
  }
  static ProcessEnded Killed(const TrainerId& id) {
    ProcessEnded ended = {.id = id, .exited = {}};
    ended.exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
    ended.exited.set_signal(9);
    return ended;
  }

  // The effects of one type: those of the last event, or all since ForgetEffects.
  template <typename T>
  std::vector<T> Last() const {
    return Filter<T>(last_);
  }
  template <typename T>
  std::vector<T> All() const {
    return Filter<T>(all_);
  }
  std::vector<v1::Fact> LastFacts() const { return Facts(last_); }
  std::vector<v1::Fact> AllFacts() const { return Facts(all_); }
  std::vector<uint64_t> LastSteps() const {
    std::vector<uint64_t> steps;
    for (const SendToCoordinator& sent : Last<SendToCoordinator>()) {
      for (const v1::RankReport& report : sent.message.reports().reports()) {
        for (const v1::StepReport& step : report.steps()) steps.push_back(step.step());
      }
    }
    return steps;
  }
  std::string TokenOf(const TrainerId& id) const {
    for (const AdmitTrainer& admitted : All<AdmitTrainer>()) {
      if (admitted.id == id) return admitted.token;
    }
    return "none";
  }
  void ForgetEffects() { all_.clear(); }

 private:
  FactsStored DiskAnswer() {
    if (!disk_error.ok()) return {disk_error};
    disk_ = pending_write_.replace ? pending_write_.bytes : disk_ + pending_write_.bytes;
    return {};
  }
  template <typename T>
  static std::vector<T> Filter(const std::vector<Effect>& effects) {
    std::vector<T> found;
    for (const Effect& effect : effects) {
      if (const T* match = std::get_if<T>(&effect)) found.push_back(*match);
    }
    return found;
  }
  static std::vector<v1::Fact> Facts(const std::vector<Effect>& effects) {
    std::vector<v1::Fact> facts;
    for (const SendToCoordinator& sent : Filter<SendToCoordinator>(effects)) {
      facts.insert(facts.end(), sent.message.facts().facts().begin(), sent.message.facts().facts().end());
    }
    return facts;
  }

  SimulatedClock clock_;
  int tokens_ = 0;
  int outboxes_ = 0;
  std::string disk_;
  StoreFacts pending_write_ = {};
  std::unique_ptr<Core> core_;
  std::vector<Effect> last_;
  std::vector<Effect> all_;
};

// One running trainer with a link, on a daemon that is attached.
class RunningTrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    driver_.Attach();
    driver_.Handle(driver_.State(1, {Desired(Rank(0))}));
    driver_.Handle(ProcessStarted{Rank(0), 4242});
    driver_.Handle(driver_.Open(LinkId(1), Rank(0)));
    driver_.Run(absl::Milliseconds(200));  // until the core has sent the fact `started`, which is not urgent
  }
  CoreDriver driver_;
};

}  // namespace trainyard::agent
