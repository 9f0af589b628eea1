// What programs that call the API rely on: pages that neither hide nor repeat anything, versions, conditional calls,
// and a Submit that can be repeated. With the production core on a manual clock.
#include <gmock/gmock.h>

#include <functional>

#include "common/error_details.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string IdOf(int number) { return absl::StrCat("job", absl::Dec(number, absl::kZeroPad8)); }

// The calls of the API for which Harness has no function.
class Caller {
 public:
  explicit Caller(Harness& harness) : harness_(harness) {}

  template <typename E, typename Request>
  Reply Call(const Request& request) {
    CallId call(++calls_);
    harness_.Handle(E{call, request});
    return harness_.replies[call];
  }
  v1::ListResponse List(uint32_t size, const std::string& token = "") {
    v1::ListRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    return std::get<v1::ListResponse>(Call<ListJobs>(request).response);
  }
  v1::FindJobsResponse Find(const std::string& text, uint32_t size, const std::string& token = "") {
    v1::FindJobsRequest request;
    request.set_text(text);
    request.set_page_size(size);
    request.set_page_token(token);
    return std::get<v1::FindJobsResponse>(Call<FindJobs>(request).response);
  }
  v1::ListHostsResponse Hosts(uint32_t size, const std::string& token = "") {
    v1::ListHostsRequest request;
    request.set_page_size(size);
    request.set_page_token(token);
    return std::get<v1::ListHostsResponse>(Call<ListHosts>(request).response);
  }
  v1::ListEventsResponse Events(const std::string& job, uint32_t size, const std::string& token = "") {
    v1::ListEventsRequest request;
    request.set_job_id(job);
    request.set_page_size(size);
    request.set_page_token(token);
    return std::get<v1::ListEventsResponse>(Call<ListEvents>(request).response);
  }
  // How a watch from this sequence number ends; OK: it continues.
  absl::Status WatchStatus(uint64_t after, bool allow_gap = false) {
    WatchId watch(++calls_);
    harness_.Handle(WatchJob{watch, JobId(kJob), {.sequence = after}, /*first=*/true, allow_gap});
    const auto ended = harness_.ended_watches.find(watch);
    harness_.Handle(WatchClosed{watch, JobId(kJob)});
    return ended == harness_.ended_watches.end() ? absl::OkStatus() : ended->second;
  }

 private:
  Harness& harness_;
  uint64_t calls_ = 500'000;
};

class CoreApi : public testing::Test {
 protected:
  Harness harness_;
  Caller caller_{harness_};
};

TEST_F(CoreApi, PagesOfJobs_NeitherHideNorRepeat_WhileJobsAreSubmitted) {
  for (int i = 1; i <= 7; ++i) harness_.Submit(MakeSpec(1), IdOf(i));

  std::vector<std::string> listed, found;
  std::string list_token, find_token;
  int submitted = 7;
  do {
    const v1::ListResponse page = caller_.List(2, list_token);
    for (const v1::Job& job : page.jobs()) listed.push_back(job.job_id());
    list_token = page.next_page_token();
    const v1::FindJobsResponse matches = caller_.Find("test-job", 2, find_token);
    for (const v1::FoundJob& job : matches.jobs()) found.push_back(job.job_id());
    find_token = matches.next_page_token();
    harness_.Submit(MakeSpec(1), IdOf(++submitted));
    EXPECT_EQ(list_token.empty(), find_token.empty());
  } while (!list_token.empty());

  EXPECT_THAT(listed, ElementsAre(IdOf(7), IdOf(6), IdOf(5), IdOf(4), IdOf(3), IdOf(2), IdOf(1)));
  EXPECT_EQ(found, listed);
  EXPECT_EQ(caller_.Find("test-job", 2).total(), static_cast<uint32_t>(submitted));
}

TEST_F(CoreApi, PagesOfANamespaceInTheQueue_HaveReasons) {
  for (int i = 1; i <= 6; ++i) {
    v1::JobSpec spec = MakeSpec(1);
    spec.set_namespace_(i % 2 == 0 ? "even" : "odd");
    harness_.Submit(spec, IdOf(i));
  }

  const v1::GetQueueResponse first = harness_.Queue("even", 2);
  const v1::GetQueueResponse second = harness_.Queue("even", 2, first.next_page_token());

  ASSERT_EQ(first.jobs_size(), 2);
  ASSERT_EQ(second.jobs_size(), 1);
  EXPECT_EQ(first.total(), 3u);
  EXPECT_EQ(second.next_page_token(), "");
  for (const v1::QueuedJob& job : {first.jobs(0), first.jobs(1), second.jobs(0)}) {
    EXPECT_THAT(job.reason(), testing::HasSubstr("no host is attached")) << job.job_id();
  }
}

TEST_F(CoreApi, PagesOfHosts_NeitherHideNorRepeat_WhileHostsAttach) {
  std::vector<std::unique_ptr<FakeHost>> hosts;
  uint64_t incarnation = 100;
  const auto attach = [&](const std::string& name) {
    hosts.push_back(std::make_unique<FakeHost>(harness_, name, 1, ++incarnation));
    hosts.back()->Attach();
  };
  for (const char* name : {"b", "d", "f"}) attach(name);

  std::vector<std::string> names;
  std::string token;
  for (const char* added : {"a", "e", "g", "h"}) {
    const v1::ListHostsResponse page = caller_.Hosts(1, token);
    for (const v1::HostStatus& host : page.hosts()) names.push_back(host.name());
    token = page.next_page_token();
    if (token.empty()) break;
    attach(added);
  }

  EXPECT_THAT(names, ElementsAre("b", "d", "e", "f"));
  EXPECT_THAT(token, HasSubstr("f")) << "g and h follow";
}

TEST_F(CoreApi, PagesOfEvents_EndWithTheEventsOfTheFirstCall) {
  harness_.Submit(MakeSpec(1), kJob);
  for (int i = 0; i < 3; ++i) {
    harness_.Pause(kJob);
    harness_.Resume(kJob);
  }
  const size_t all = static_cast<size_t>(caller_.Events(kJob, 0).events_size());

  std::vector<uint64_t> sequences;
  std::string token;
  do {
    const v1::ListEventsResponse page = caller_.Events(kJob, 2, token);
    EXPECT_LE(page.events_size(), 2);
    for (const v1::Event& event : page.events()) sequences.push_back(event.sequence());
    token = page.next_page_token();
    harness_.Pause(kJob);
    harness_.Resume(kJob);
  } while (!token.empty());

  EXPECT_EQ(sequences.size(), all);
  EXPECT_TRUE(std::is_sorted(sequences.begin(), sequences.end()));
}

TEST_F(CoreApi, MalformedPageToken_IsRefusedWithItsField) {
  harness_.Submit(MakeSpec(1), kJob);
  const char* const tokens[] = {"x",         "before-",      "before--1", "before-+1",
                                "before- 1", "before-01",    "before-1x", "before-18446744073709551616",
                                "events-1",  "events-1-2-3", "found-",    "unknown-",
                                "after-",    "after"};
  const auto expect_refusal = [](const Reply& reply, const char* token) {
    EXPECT_TRUE(absl::IsInvalidArgument(reply.status)) << token << ": " << reply.status;
    const google::rpc::BadRequest details = BadRequestOf(reply.status);
    ASSERT_EQ(details.field_violations_size(), 1) << token;
    EXPECT_EQ(details.field_violations(0).field(), "page_token");
  };
  for (const char* token : tokens) {
    v1::ListRequest list;
    list.set_page_token(token);
    expect_refusal(caller_.Call<ListJobs>(list), token);
    v1::FindJobsRequest find;
    find.set_text(kJob);
    find.set_page_token(token);
    expect_refusal(caller_.Call<FindJobs>(find), token);
    v1::ListHostsRequest hosts;
    hosts.set_page_token(token);
    expect_refusal(caller_.Call<ListHosts>(hosts), token);
    v1::ListEventsRequest events;
    events.set_job_id(kJob);
    events.set_page_token(token);
    expect_refusal(caller_.Call<ListEvents>(events), token);
  }
}

TEST_F(CoreApi, Page_StaysBelowTheLimitOfAMessage) {
  v1::JobSpec large = MakeSpec(1);
  for (int i = 0; i < 80; ++i) large.mutable_train()->mutable_data()->add_text("/" + std::string(3'000, 'p'));
  for (int i = 1; i <= 30; ++i) ASSERT_TRUE(harness_.Submit(large, IdOf(i)).status.ok());

  const v1::ListResponse page = caller_.List(1'000);

  EXPECT_LT(page.ByteSizeLong(), limits::kGrpcMessageBytes / 2);
  EXPECT_LT(page.jobs_size(), 30);
  EXPECT_GT(page.jobs_size(), 1);
  EXPECT_EQ(page.jobs_size() + caller_.List(1'000, page.next_page_token()).jobs_size(), 30);
}

TEST_F(CoreApi, VersionOfAJob_GrowsWithStoredChanges_NotWithSteps_AndNeverFallsBack) {
  FakeHost host(harness_, "w1", 1, 11);
  host.Attach();
  harness_.Submit(MakeSpec(1), kJob);
  const uint64_t submitted = harness_.Get(kJob).resource_version();
  BringToRunning(harness_, host, kJob);
  const uint64_t running = harness_.Get(kJob).resource_version();
  EXPECT_GT(submitted, 0u);
  EXPECT_GT(running, submitted);

  host.Report(Key(kJob, 1, 0), 1, 1);
  EXPECT_EQ(harness_.Get(kJob).last_step(), 1u);
  EXPECT_EQ(harness_.Get(kJob).resource_version(), running);

  const std::map<std::string, std::string> older = harness_.records;
  harness_.Advance(absl::Seconds(1));
  harness_.Pause(kJob);
  const uint64_t lost = harness_.Get(kJob).resource_version();
  EXPECT_GT(lost, running);
  harness_.records = older;
  harness_.Advance(absl::Seconds(1));
  harness_.Restart();
  EXPECT_GT(harness_.Get(kJob).resource_version(), lost)
      << "no version may be used again after a restart with an older copy of the store";
}

TEST_F(CoreApi, GetThenWatch_LosesAndRepeatsNothing) {
  FakeHost host(harness_, "w1", 1, 11);
  RunJobOn(host);
  host.Report(Key(kJob, 1, 0), 1, 3);
  const v1::Job job = harness_.Get(kJob);
  host.Report(Key(kJob, 1, 0), 4, 5);
  harness_.RequestSave(kJob);

  std::vector<std::string> seen;
  for (const EventPtr& event : harness_.WatchFrom(
           kJob, WatchPosition{
                     .sequence = job.resource_version(), .step = job.last_step(), .eval_step = job.last_eval_step()})) {
    seen.push_back(event->has_step() ? absl::StrCat(event->step().step()) : event->notice().rule());
  }

  EXPECT_THAT(seen, ElementsAre("4", "5", "operator"));
}

TEST_F(CoreApi, ConditionalCall_WithAnotherVersion_ChangesNothing) {
  harness_.Submit(MakeSpec(1), kJob);
  const uint64_t version = harness_.Get(kJob).resource_version();
  v1::PauseRequest request;
  request.set_job_id(kJob);
  request.set_expected_version(version);
  EXPECT_TRUE(caller_.Call<PauseJob>(request).status.ok());
  EXPECT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_PAUSED);

  v1::ResumeRequest resume;
  resume.set_job_id(kJob);
  resume.set_expected_version(version);
  const Reply refused = caller_.Call<ResumeJob>(resume);
  EXPECT_TRUE(absl::IsAborted(refused.status)) << refused.status;
  EXPECT_EQ(ReasonOf(refused.status), reasons::kVersionMismatch);
  const uint64_t current = harness_.Get(kJob).resource_version();
  EXPECT_EQ(ErrorInfoOf(refused.status)->metadata().at("resource_version"), absl::StrCat(current));
  EXPECT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_PAUSED);

  harness_.Handle(CancelJob{CallId(9), JobId(kJob), "enough", /*save=*/false, version});
  EXPECT_TRUE(absl::IsAborted(harness_.replies[CallId(9)].status));
  harness_.Handle(CancelJob{CallId(10), JobId(kJob), "enough", /*save=*/false, current});
  EXPECT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_CANCELLED);
}

TEST_F(CoreApi, VersionOfAHost_GrowsWithItsEvents_AndIsNotUsedAgainForALaterHostOfTheName) {
  FakeHost host(harness_, "w1", 1, 11);
  host.Attach();
  const uint64_t attached = harness_.HostOf("w1").resource_version();
  EXPECT_GT(attached, 0u);
  v1::SetHostRequest request;
  request.set_name("w1");
  request.set_action(v1::SetHostRequest::ACTION_CORDON);
  request.set_expected_version(attached);
  const Reply cordoned = caller_.Call<SetHost>(request);
  ASSERT_TRUE(cordoned.status.ok()) << cordoned.status;
  EXPECT_GT(std::get<v1::HostStatus>(cordoned.response).resource_version(), attached);
  request.set_action(v1::SetHostRequest::ACTION_UNCORDON);
  const Reply refused = caller_.Call<SetHost>(request);
  EXPECT_TRUE(absl::IsAborted(refused.status)) << refused.status;
  EXPECT_TRUE(harness_.HostOf("w1").cordoned());

  const uint64_t before = harness_.HostOf("w1").resource_version();
  host.Disconnect();
  host.Detach();
  harness_.Advance(absl::Minutes(1));
  const Reply forgotten = harness_.SetHostState("w1", v1::SetHostRequest::ACTION_FORGET);
  ASSERT_TRUE(forgotten.status.ok()) << forgotten.status;
  FakeHost other(harness_, "w1", 1, 12);
  other.Attach();
  EXPECT_GT(harness_.HostOf("w1").resource_version(), before);
  harness_.Restart();
  EXPECT_GT(harness_.HostOf("w1").resource_version(), before);
}

TEST_F(CoreApi, WatchFromAnExpiredVersion_IsRefused_UnlessAGapIsAllowed) {
  harness_.Submit(MakeSpec(1), kJob);
  const uint64_t first = harness_.Get(kJob).resource_version();
  for (size_t i = 0; i < limits::kDurableEvents; ++i) {
    harness_.Pause(kJob);
    harness_.Resume(kJob);
  }
  ASSERT_GT(harness_.Get(kJob).events_dropped(), 0u);

  for (bool restarted : {false, true}) {
    if (restarted) harness_.Restart();
    const absl::Status expired = caller_.WatchStatus(first);
    EXPECT_TRUE(absl::IsOutOfRange(expired)) << expired;
    EXPECT_EQ(ReasonOf(expired), reasons::kVersionExpired);
    EXPECT_THAT(std::string(expired.message()), HasSubstr("Get the job and watch from its resource_version"));
    EXPECT_EQ(ErrorInfoOf(expired)->metadata().at("job_id"), kJob);
    EXPECT_TRUE(caller_.WatchStatus(first, /*allow_gap=*/true).ok());
    EXPECT_TRUE(caller_.WatchStatus(0).ok());
    EXPECT_TRUE(caller_.WatchStatus(harness_.Get(kJob).resource_version()).ok());
  }
  const absl::Status unknown = caller_.WatchStatus(UINT64_MAX);
  EXPECT_TRUE(absl::IsOutOfRange(unknown));
  EXPECT_EQ(ReasonOf(unknown), reasons::kVersionUnknown);
}

TEST_F(CoreApi, RepeatedSubmit_ReturnsTheFirstAnswer_AlsoAfterARestartAndTheEndOfTheJob) {
  const Reply first = harness_.Submit(MakeSpec(1), kJob);
  const auto expect_same = [&] {
    const Reply again = harness_.Submit(MakeSpec(1), kJob);
    ASSERT_TRUE(again.status.ok()) << again.status;
    EXPECT_EQ(std::get<v1::SubmitResponse>(again.response).SerializeAsString(),
              std::get<v1::SubmitResponse>(first.response).SerializeAsString());
  };
  expect_same();
  harness_.Restart();
  expect_same();
  harness_.Cancel(kJob);
  expect_same();
  EXPECT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_CANCELLED) << "it was not submitted again";

  const Reply other = harness_.Submit(MakeSpec(2), kJob);
  EXPECT_TRUE(absl::IsAlreadyExists(other.status));
  EXPECT_EQ(ReasonOf(other.status), reasons::kJobIdInUse);
  EXPECT_THAT(std::string(other.status.message()), HasSubstr("was used for another request"));
}

TEST_F(CoreApi, RestartAndSaveWithAnId_TakeEffectOnce_AlsoIfTheNextCoordinatorGetsThemAgain) {
  FakeHost host(harness_, "w1", 1, 11);
  RunJobOn(host);
  v1::RestartRequest restart;
  restart.set_job_id(kJob);
  restart.set_now(true);
  restart.set_expected_version(harness_.Get(kJob).resource_version());
  restart.set_request_id("restart-1");
  v1::SaveRequest save;
  save.set_job_id(kJob);
  save.set_request_id("restart-1");  // a request of another kind may have the same id

  ASSERT_TRUE(caller_.Call<RestartJob>(restart).status.ok());
  host.Apply();
  BringToRunning(harness_, host, kJob);
  ASSERT_EQ(harness_.Get(kJob).generation(), 2u);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(caller_.Call<SaveJob>(save).status.ok());
  EXPECT_EQ(host.desired().trainers(0).save_requests(), 1u);
  for (bool next_coordinator : {false, true}) {
    if (next_coordinator) {
      host.Disconnect();
      harness_.Restart();
      host.Attach();
    }
    const Reply again = caller_.Call<RestartJob>(restart);
    ASSERT_TRUE(again.status.ok()) << again.status;
    EXPECT_EQ(std::get<v1::Job>(again.response).generation(), 2u);
    EXPECT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_RUNNING) << "the job was restarted again";
  }

  restart.set_now(false);
  EXPECT_TRUE(absl::IsAborted(caller_.Call<RestartJob>(restart).status)) << "with another `now` it is another request";
  restart.set_now(true);
  restart.set_request_id("restart-2");
  EXPECT_TRUE(absl::IsAborted(caller_.Call<RestartJob>(restart).status)) << "another request, for an older version";
  restart.clear_expected_version();
  EXPECT_TRUE(caller_.Call<RestartJob>(restart).status.ok());
  EXPECT_EQ(harness_.StateOf(kJob), v1::JOB_STATE_STOPPING);
}

TEST_F(CoreApi, SubmitWithTheIdOfADeletedJob_IsRefused_AlsoAfterARestart) {
  for (int i = 1; i <= 25; ++i) {  // the harness keeps 20 finished jobs
    harness_.Submit(MakeSpec(1), IdOf(i));
    harness_.Cancel(IdOf(i));
  }
  for (bool restarted : {false, true}) {
    if (restarted) harness_.Restart();
    const Reply late = harness_.Submit(MakeSpec(1), IdOf(1));
    EXPECT_TRUE(absl::IsAlreadyExists(late.status)) << late.status;
    EXPECT_EQ(ReasonOf(late.status), reasons::kJobDeleted);
    EXPECT_TRUE(absl::IsAlreadyExists(harness_.Submit(MakeSpec(2), IdOf(25)).status));
    const Reply cancel = harness_.Cancel(IdOf(1));
    EXPECT_TRUE(absl::IsNotFound(cancel.status)) << cancel.status;
    EXPECT_EQ(ReasonOf(cancel.status), reasons::kJobDeleted);
    EXPECT_THAT(std::string(cancel.status.message()),
                HasSubstr("is no longer in the history, which keeps the last 20"));
  }
}

// Regression: if a job was deleted in the turn in which it ended, its watchers waited for ever.
TEST_F(CoreApi, WatchersOfAJobThatIsDeletedAtItsEnd_SeeTheEnd) {
  harness_.finished_jobs = 1;
  harness_.Restart();
  FakeHost host(harness_, "w1", 2, 11);
  host.Attach();
  for (int i = 1; i <= 2; ++i) {
    harness_.Submit(MakeSpec(1), IdOf(i));
    harness_.Cancel(IdOf(i));
  }
  const WatchId watch(1);
  const uint64_t last = harness_.core->state().jobs.at(JobId(IdOf(1))).last_sequence;
  harness_.Handle(WatchJob{watch, JobId(IdOf(1)), {.sequence = last}, /*first=*/true});
  ASSERT_FALSE(harness_.watched.contains(watch)) << "it waits";

  host.Apply(/*start=*/false);  // neither trainer was started, so both jobs end

  EXPECT_FALSE(harness_.core->state().jobs.contains(JobId(IdOf(1))));
  ASSERT_TRUE(harness_.watched.contains(watch));
  EXPECT_TRUE(harness_.watched.at(watch).last);
  EXPECT_EQ(harness_.watched.at(watch).events.back()->state().state(), v1::JOB_STATE_CANCELLED);
}

}  // namespace
}  // namespace trainyard
