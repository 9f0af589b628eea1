// The loop with a store that refuses commits temporarily or permanently. Each test runs single rounds, without
// threads.
#include "coordinator/core/core_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/event_queue.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A memory store that refuses commits on request.
class RefusingStore final : public Store {
 public:
  absl::StatusOr<Snapshot> Load(absl::string_view prefix) override { return base_->Load(prefix); }
  absl::StatusOr<uint64_t> Commit(const std::vector<StoreEntry>& entries, uint64_t expected_revision) override {
    ++commits_tried;
    if (!refusal.ok()) return refusal;
    return base_->Commit(entries, expected_revision);
  }

  void TidyUp() override { ++tidied; }

  absl::Status refusal;
  int commits_tried = 0;
  int tidied = 0;

 private:
  std::unique_ptr<Store> base_ = NewMemoryStore();
};

class Sink final : public EffectSink {
 public:
  void Release(Effect effect) override {
    if (auto* reply = std::get_if<Reply>(&effect)) replies[reply->call] = *reply;
    if (auto* line = std::get_if<WriteLog>(&effect)) log.push_back(line->text);
    if (auto* send = std::get_if<SendToHost>(&effect)) welcomes_sent += send->message.has_welcome() ? 1 : 0;
    if (auto* send = std::get_if<SendToHost>(&effect)) acknowledged += send->message.has_ack() ? 1 : 0;
  }

  std::map<CallId, Reply> replies;
  std::vector<std::string> log;
  int welcomes_sent = 0;
  int acknowledged = 0;
};

class CoreLoopTest : public testing::Test {
 protected:
  CoreLoopTest() {
    auto core = Core::New({.cluster_id = "cluster", .incarnation = Incarnation(1)}, {}, clock_.TimeNow());
    EXPECT_TRUE(core.ok()) << core.status();
    loop_ = std::make_unique<CoreLoop>(CoreLoop::Options{
        .core = *std::move(core),
        .revision = 0,
        .store = &store_,
        .clock = &clock_,
        .queue = &queue_,
        .sink = &sink_,
        .contacts = nullptr,
        .check_waiting = [this](CallId call) { return given_up_.contains(call) ? given_up_[call] : absl::OkStatus(); },
        .observe = [this](const LoopRound& round, const Core&) { rounds_.push_back(round); },
        .stalled = [this](const std::string& why) { stalls_.push_back(why); },
        .check_store = [this] { return store_check_; },
        .failed = nullptr,
    });
    EXPECT_TRUE(Round().ok());
  }

  absl::Status Round() { return loop_->RunOnce(absl::InfinitePast()).status(); }
  void Submit(uint64_t call) {
    v1::SubmitRequest request;
    *request.mutable_spec() = MakeSpec(1);
    request.set_job_id(kJob);
    request.set_default_run_root("/runs");
    ASSERT_TRUE(queue_.TryPost(SubmitJob{CallId(call), request, JobId("fallback0001")}));
  }
  AttachHost Attach() {
    AttachHost attach{SessionId(1), {}, "peer"};
    attach.hello.set_protocol(limits::kProtocol);
    attach.hello.set_host("w1");
    attach.hello.set_incarnation(5);
    attach.hello.set_slots(1);
    return attach;
  }

  SimulatedClock clock_;
  RefusingStore store_;
  absl::Status store_check_;  // the result of checking the store's files
  std::map<CallId, absl::Status> given_up_;
  Sink sink_;
  EventQueue queue_{100};
  std::vector<LoopRound> rounds_;
  std::vector<std::string> stalls_;  // as reported to watchers; "": no longer stalled
  std::unique_ptr<CoreLoop> loop_;
};

TEST_F(CoreLoopTest, CallWhoseDeadlineHasPassed_IsAnsweredAndHasNoEffect) {
  for (bool full_disk : {false, true}) {
    if (full_disk) {
      store_.refusal = absl::ResourceExhaustedError("database or disk is full");
      Submit(1);
      ASSERT_TRUE(Round().ok());
    }
    const CallId late(full_disk ? 3 : 2), get(full_disk ? 11 : 10);
    given_up_[late] = absl::DeadlineExceededError("the deadline has passed");
    v1::SubmitRequest request;
    *request.mutable_spec() = MakeSpec(1);
    request.set_job_id("job00000009");
    request.set_default_run_root("/runs");
    ASSERT_TRUE(queue_.TryPost(SubmitJob{late, request, JobId("fallback0001")}));
    ASSERT_TRUE(queue_.TryPost(GetJob{get, JobId("job00000009")}));
    ASSERT_TRUE(Round().ok());

    EXPECT_TRUE(absl::IsDeadlineExceeded(sink_.replies.at(late).status));
    EXPECT_TRUE(absl::IsNotFound(sink_.replies.at(get).status));
  }
}

TEST_F(CoreLoopTest, StoreTidiesUp_OnlyWhenNothingWasCommittedForAWhile) {
  clock_.AdvanceTime(absl::Seconds(1));
  store_.tidied = 0;
  const int tried = store_.commits_tried;
  for (int i = 0; i < 5; ++i) {
    v1::SubmitRequest request;
    *request.mutable_spec() = MakeSpec(1);
    request.set_job_id(absl::StrCat("job0000001", i));
    request.set_default_run_root("/runs");
    ASSERT_TRUE(queue_.TryPost(SubmitJob{CallId(static_cast<uint64_t>(100 + i)), request, JobId("fallback0001")}));
    ASSERT_TRUE(Round().ok());
    clock_.AdvanceTime(absl::Milliseconds(50));
    ASSERT_TRUE(Round().ok());
  }
  EXPECT_EQ(store_.commits_tried, tried + 5);
  EXPECT_EQ(store_.tidied, 0);

  clock_.AdvanceTime(absl::Milliseconds(100));
  ASSERT_TRUE(queue_.TryPost(GetServerInfo{CallId(200)}));
  ASSERT_TRUE(Round().ok());
  EXPECT_EQ(store_.tidied, 1) << "events that commit nothing do not postpone the call of TidyUp";
}

TEST_F(CoreLoopTest, FullDisk_DelaysUndurableEffects_AnswersReads_RefusesCalls_AndRecovers) {
  store_.refusal = absl::ResourceExhaustedError("database or disk is full");
  Submit(1);
  ASSERT_TRUE(Round().ok());
  EXPECT_THAT(sink_.replies, IsEmpty()) << "not durable, so not answered";
  EXPECT_TRUE(rounds_.back().stalled);
  EXPECT_EQ(rounds_.back().commit_failures, 1u);
  EXPECT_THAT(sink_.log, Contains(HasSubstr("the store accepts no records: database or disk is full")));

  queue_.Post(Attach());
  ASSERT_TRUE(queue_.TryPost(GetServerInfo{CallId(2)}));
  ASSERT_TRUE(queue_.TryPost(CancelJob{CallId(3), JobId(kJob), "enough"}));
  ASSERT_TRUE(Round().ok());
  EXPECT_TRUE(sink_.replies.at(CallId(2)).status.ok()) << "reads continue";
  EXPECT_TRUE(absl::IsUnavailable(sink_.replies.at(CallId(3)).status));
  EXPECT_THAT(std::string(sink_.replies.at(CallId(3)).status.message()), HasSubstr("disk full"));
  EXPECT_EQ(sink_.welcomes_sent, 0) << "a daemon that attaches waits";

  // Retries depend on time and not on events, and the log stays short.
  int commits_tried = store_.commits_tried;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Round().ok());
  EXPECT_EQ(store_.commits_tried, commits_tried);
  size_t lines = sink_.log.size();
  for (int i = 0; i < 20; ++i) {
    clock_.AdvanceTime(absl::Seconds(1));
    ASSERT_TRUE(Round().ok());
  }
  EXPECT_GT(store_.commits_tried, commits_tried + 10);
  EXPECT_EQ(sink_.log.size(), lines);
  EXPECT_THAT(stalls_, ElementsAre("database or disk is full")) << "reported immediately, and only once";

  store_.refusal = absl::OkStatus();
  clock_.AdvanceTime(absl::Seconds(2));
  ASSERT_TRUE(Round().ok());
  EXPECT_TRUE(sink_.replies.at(CallId(1)).status.ok());
  EXPECT_THAT(sink_.log, Contains(HasSubstr("the store accepts records again")));
  EXPECT_THAT(stalls_, ElementsAre("database or disk is full", ""));
  ASSERT_TRUE(Round().ok());
  EXPECT_EQ(sink_.welcomes_sent, 1) << "the waiting events are handled now";
  EXPECT_FALSE(rounds_.back().stalled);
  EXPECT_FALSE(store_.Load(absl::StrCat("job/", kJob))->records.empty());
}

TEST_F(CoreLoopTest, RemovedStore_EndsTheLoop_AlsoWithoutWrites) {
  store_check_ = absl::UnavailableError("the disk does not answer");
  clock_.AdvanceTime(absl::Seconds(1));
  EXPECT_TRUE(Round().ok()) << "the error may be temporary";

  store_check_ = absl::FailedPreconditionError("store.db was removed");
  EXPECT_TRUE(Round().ok()) << "the store is checked only once per second";
  clock_.AdvanceTime(absl::Seconds(1));
  Submit(1);

  EXPECT_EQ(Round(), store_check_);
  EXPECT_THAT(sink_.replies, IsEmpty());
}

TEST_F(CoreLoopTest, FactsThatNoCallWaitsFor_AreWrittenWithLaterRecords_OrAfterAShortDelay) {
  queue_.Post(Attach());
  Submit(1);
  ASSERT_TRUE(Round().ok());
  ASSERT_TRUE(sink_.replies.at(CallId(1)).status.ok());
  int commits_tried = store_.commits_tried;
  const auto post = [&](uint64_t sequence) {
    HostFactsReceived received{SessionId(1), {}};
    v1::Fact& fact = *received.batch.add_facts();
    fact.set_sequence(sequence);
    fact.mutable_key()->set_job_id(kJob);
    fact.mutable_key()->set_generation(1);
    fact.mutable_restored()->set_step(sequence);
    queue_.Post(std::move(received));
  };
  post(1);
  ASSERT_TRUE(Round().ok());
  EXPECT_EQ(store_.commits_tried, commits_tried);
  EXPECT_EQ(sink_.acknowledged, 0) << "not durable yet";

  clock_.AdvanceTime(CoreLoop::kHoldMax);
  ASSERT_TRUE(Round().ok());
  EXPECT_EQ(store_.commits_tried, commits_tried + 1);
  EXPECT_EQ(sink_.acknowledged, 1);

  post(2);
  ASSERT_TRUE(Round().ok());
  ASSERT_TRUE(queue_.TryPost(CancelJob{CallId(2), JobId(kJob), "enough"}));
  ASSERT_TRUE(Round().ok());
  EXPECT_EQ(store_.commits_tried, commits_tried + 2) << "both in one commit";
  EXPECT_EQ(sink_.acknowledged, 2);
  EXPECT_TRUE(sink_.replies.contains(CallId(2)));
}

TEST_F(CoreLoopTest, StoreWithAnotherWriter_EndsTheLoop_AndNothingIsSent) {
  store_.refusal = absl::AbortedError("another coordinator writes it");
  Submit(1);

  EXPECT_TRUE(absl::IsAborted(Round()));
  EXPECT_THAT(sink_.replies, IsEmpty());
}

TEST_F(CoreLoopTest, StopWithAFullDisk_RetriesOnce_AndAcknowledgesNothingElse) {
  store_.refusal = absl::UnavailableError("disk I/O error");
  Submit(1);
  ASSERT_TRUE(Round().ok());
  int commits_tried = store_.commits_tried;
  queue_.Close();

  auto handled = loop_->RunOnce(absl::InfinitePast());

  ASSERT_TRUE(handled.ok());
  EXPECT_EQ(*handled, 0u) << "the loop's thread may end";
  EXPECT_EQ(store_.commits_tried, commits_tried + 1);
  EXPECT_THAT(sink_.replies, IsEmpty());
}

}  // namespace
}  // namespace trainyard
