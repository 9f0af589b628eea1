// Requests from untrusted clients: which ones are refused before the core sees them, which jobs would not fit into the
// store, and a seeded fuzzer over every field of every request of JobService, on the production core with a host and
// running jobs. After each event all invariants must hold, and no event may take long. TRAINYARD_REQUESTS=N runs N
// requests; each depends only on its number.
#include <gmock/gmock.h>

#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/plain_text.h"
#include "coordinator/handlers/check_request.h"
#include "google/protobuf/dynamic_message.h"
#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSecondsMax = 0.5;  // a thousand times the usual time, for loaded machines and sanitizers

std::string RefusalOf(const Message& request) { return std::string(CheckRequest(request).message()); }

TEST(CheckRequest, InvalidField_IsRefusedWithItsNameAndTheReason) {
  v1::CancelRequest cancel;
  EXPECT_EQ(RefusalOf(cancel), "job_id: is required");
  cancel.set_job_id(kJob);
  EXPECT_EQ(RefusalOf(cancel), "");
  cancel.set_reason("enough\x1b[2J");
  EXPECT_THAT(RefusalOf(cancel), HasSubstr("reason: holds the control character 27"));
  cancel.set_reason("\xff");
  EXPECT_THAT(RefusalOf(cancel), HasSubstr("reason: is not UTF-8 text"));

  v1::SetHostRequest host;
  host.set_name("w1");
  EXPECT_EQ(RefusalOf(host), "action: is required");
  host.set_action(static_cast<v1::SetHostRequest::Action>(77));
  EXPECT_THAT(RefusalOf(host), HasSubstr("found the unknown value 77"));

  v1::ListEventsRequest events;
  EXPECT_EQ(RefusalOf(events), "");
  events.set_limit(10'001);
  EXPECT_EQ(RefusalOf(events), "limit: must be from 0 to 10000, found 10001");

  v1::ListRequest list;
  list.set_page_size(1'001);
  EXPECT_EQ(RefusalOf(list), "page_size: must be from 0 to 1000, found 1001");
  list.set_page_size(5);
  list.add_states(v1::JOB_STATE_UNSPECIFIED);
  EXPECT_THAT(RefusalOf(list), HasSubstr("states: expected"));

  v1::LogsRequest logs;
  logs.set_job_id(kJob);
  logs.add_ranks(65'536);
  EXPECT_EQ(RefusalOf(logs), "ranks: must be from 0 to 65535, found 65536");

  v1::SubmitRequest submit;
  submit.set_job_id("UPPER CASE");
  submit.set_default_run_root("runs");
  EXPECT_EQ(RefusalOf(submit),
            "job_id: 'UPPER CASE' must be 8 to 32 characters of a-z and 0-9, or empty\n"
            "default_run_root: must be an absolute path, found 'runs'");
}

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}

  // Sets one to four fields of `request` to values that a client would not send intentionally.
  void Corrupt(Message* request) {
    for (uint64_t i = Dice(4) + 1; i > 0; --i) CorruptField(request, 0);
  }
  uint64_t Dice(uint64_t sides) { return random_() % sides; }

 private:
  void CorruptField(Message* message, int depth) {
    const auto& descriptor = *message->GetDescriptor();
    if (descriptor.field_count() == 0) return;
    const FieldDescriptor& field = *descriptor.field(static_cast<int>(Dice(descriptor.field_count())));
    const auto& r = *message->GetReflection();
    if (field.message_type() != nullptr) {
      if (field.is_repeated() || depth > 8) return;
      if (Dice(12) == 0) return r.ClearField(message, &field);
      return CorruptField(r.MutableMessage(message, &field), depth + 1);
    }
    if (Dice(16) == 0) return r.ClearField(message, &field);
    const uint64_t count = !field.is_repeated() ? 1 : Dice(20) == 0 ? 5'000 : Dice(4);
    for (uint64_t i = 0; i < count; ++i) Set(message, field);
  }

  void Set(Message* message, const FieldDescriptor& field) {
    const auto& r = *message->GetReflection();
    const bool add = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT32:
        return add ? r.AddUInt32(message, &field, static_cast<uint32_t>(Integer()))
                   : r.SetUInt32(message, &field, static_cast<uint32_t>(Integer()));
      case FieldDescriptor::CPPTYPE_UINT64:
        return add ? r.AddUInt64(message, &field, Integer()) : r.SetUInt64(message, &field, Integer());
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return add ? r.AddDouble(message, &field, Real()) : r.SetDouble(message, &field, Real());
      case FieldDescriptor::CPPTYPE_BOOL:
        return add ? r.AddBool(message, &field, Dice(2) == 0) : r.SetBool(message, &field, Dice(2) == 0);
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int values[] = {0, 1, 2, 3, 4, 5, 6, 7, 99, -1, std::numeric_limits<int>::max()};
        const int value = values[Dice(std::size(values))];
        return add ? r.AddEnumValue(message, &field, value) : r.SetEnumValue(message, &field, value);
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return add ? r.AddString(message, &field, Text()) : r.SetString(message, &field, Text());
      default:
        FAIL() << field.full_name() << " has a type that the fuzzer does not know";
    }
  }

  uint64_t Integer() {
    const uint64_t values[] = {0,
                               1,
                               2,
                               3,
                               7,
                               16,
                               255,
                               1'000,
                               1'024,
                               4'096,
                               65'535,
                               65'536,
                               65'521,
                               65'537,
                               1 << 20,
                               16777213,
                               16777216,
                               16777217,
                               UINT32_MAX,
                               1'000'000'000'000,
                               9007199254740991,
                               uint64_t{INT64_MAX},
                               UINT64_MAX,
                               random_()};
    return values[Dice(std::size(values))];
  }
  double Real() {
    using Limits = std::numeric_limits<double>;
    const double values[] = {0.0,
                             -0.0,
                             0.5,
                             0.9,
                             1,
                             -1,
                             1e-300,
                             1e9,
                             1e308,
                             Limits::infinity(),
                             -Limits::infinity(),
                             Limits::quiet_NaN(),
                             Limits::denorm_min()};
    return values[Dice(std::size(values))];
  }
  std::string Text() {
    const std::string values[] = {"",
                                  kJob,
                                  "job00000002",
                                  "w1",
                                  "unknown",
                                  "/",
                                  "/data",
                                  "relative/path",
                                  "~/x",
                                  "$HOME/x",
                                  "../../etc/passwd",
                                  "a\nb",
                                  "\x1b[2J",
                                  std::string("/a\0b", 4),
                                  "\xff\xfe",
                                  "\xc2\x9b"
                                  "1m",
                                  "h.*",
                                  "*?*?*?*?*?*?*?*?*?*",
                                  "[",
                                  "before-3",
                                  "before-",
                                  "events-1-18446744073709551615",
                                  "found-2",
                                  "unknown-a",
                                  "after-w1",
                                  "lab-tiny",
                                  "lo",
                                  std::string(5'000, 'x'),
                                  std::string(300, '*'),
                                  std::string(64, 'j'),
                                  "/" + std::string(3'999, 'p'),
                                  "%s%n",
                                  "'; drop table jobs"};
    return values[Dice(std::size(values))];
  }

  std::mt19937_64 random_;
};

// The event that the server creates for a request.
using MakeEvent = std::function<Event(const Message&, uint64_t call)>;

template <typename E, typename Request>
MakeEvent PassRequest() {
  return [](const Message& request, uint64_t call) -> Event {
    return E{CallId(call), static_cast<const Request&>(request)};
  };
}

std::map<std::string, MakeEvent> Methods() {
  std::map<std::string, MakeEvent> methods;
  methods["Submit"] = [](const Message& request, uint64_t call) -> Event {
    return SubmitJob{CallId(call), static_cast<const v1::SubmitRequest&>(request),
                     JobId(absl::StrCat("fallback", 1000 + call % 1000))};
  };
  methods["Get"] = [](const Message& request, uint64_t call) -> Event {
    return GetJob{CallId(call), JobId(static_cast<const v1::GetRequest&>(request).job_id())};
  };
  methods["Cancel"] = [](const Message& request, uint64_t call) -> Event {
    const auto& cancel = static_cast<const v1::CancelRequest&>(request);
    return CancelJob{CallId(call), JobId(cancel.job_id()), cancel.reason(), cancel.save(), cancel.expected_version()};
  };
  methods["Watch"] = [](const Message& request, uint64_t call) -> Event {
    const auto& watch = static_cast<const v1::WatchRequest&>(request);
    return WatchJob{
        WatchId(call),
        JobId(watch.job_id()),
        {.sequence = watch.after_sequence(), .step = watch.after_step(), .eval_step = watch.after_eval_step()},
        true,
        watch.allow_gap()};
  };
  methods["Logs"] = [](const Message& request, uint64_t call) -> Event {
    return OpenLogs{ReaderId(call), static_cast<const v1::LogsRequest&>(request)};
  };
  methods["GetServerInfo"] = [](const Message&, uint64_t call) -> Event { return GetServerInfo{CallId(call)}; };
  methods["ListHosts"] = PassRequest<ListHosts, v1::ListHostsRequest>();
  methods["FindJobs"] = PassRequest<FindJobs, v1::FindJobsRequest>();
  methods["List"] = PassRequest<ListJobs, v1::ListRequest>();
  methods["Restart"] = PassRequest<RestartJob, v1::RestartRequest>();
  methods["Pause"] = PassRequest<PauseJob, v1::PauseRequest>();
  methods["Save"] = PassRequest<SaveJob, v1::SaveRequest>();
  methods["Resume"] = PassRequest<ResumeJob, v1::ResumeRequest>();
  methods["SetPriority"] = PassRequest<SetPriority, v1::SetPriorityRequest>();
  methods["GetQueue"] = PassRequest<GetQueue, v1::GetQueueRequest>();
  methods["SetHost"] = PassRequest<SetHost, v1::SetHostRequest>();
  methods["ListEvents"] = PassRequest<ListEvents, v1::ListEventsRequest>();
  return methods;
}

// Fills in a request that would have an effect; the fuzzer then corrupts it.
void FillValid(Message* request, uint64_t number) {
  const auto& descriptor = *request->GetDescriptor();
  const auto& r = *request->GetReflection();
  if (auto* submit = dynamic_cast<v1::SubmitRequest*>(request); submit != nullptr) {
    *submit->mutable_spec() = MakeSpec(static_cast<uint32_t>(number % 3 + 1));
    submit->set_default_run_root("/runs");
    submit->set_job_id(number % 2 == 0 ? absl::StrCat("fuzzed", 100'000 + number) : "");
    return;
  }
  if (auto* host = dynamic_cast<v1::SetHostRequest*>(request); host != nullptr) {
    host->set_name("w1");
    host->set_action(v1::SetHostRequest::ACTION_UNCORDON);
  }
  if (auto* priority = dynamic_cast<v1::SetPriorityRequest*>(request); priority != nullptr) {
    priority->set_priority(static_cast<uint32_t>(number % 101));
  }
  if (const FieldDescriptor* id = descriptor.FindFieldByName("job_id"); id != nullptr) {
    r.SetString(request, id, number % 2 == 0 ? kJob : "job00000002");
  }
}

class FuzzedCluster {
 public:
  FuzzedCluster() : host_(harness, "w1", 4, 11) {
    host_.Attach();
    harness.Submit(MakeSpec(2), kJob);
    BringToRunning(harness, host_, kJob);
    harness.Submit(MakeSpec(1), "job00000002");
  }

  void Send(uint64_t number, const std::string& method, const MakeEvent& make, const Message& type) {
    Fuzzer fuzzer(number);
    std::unique_ptr<Message> request(type.New());
    FillValid(request.get(), number);
    fuzzer.Corrupt(request.get());
    const auto what = [&] {
      return absl::StrCat("request ", number, " of ", method, ":\n", request->ShortDebugString().substr(0, 2'000));
    };

    const clock_t begin = clock();
    absl::Status status = CheckRequest(*request);
    // The server does not pass refused requests to the core. The core must survive them nevertheless, except for text
    // that is not UTF-8.
    const bool valid_text = !absl::StrContains(status.message(), "UTF-8");
    if (valid_text && (status.ok() || fuzzer.Dice(2) == 0)) harness.Handle(make(*request, 1'000 + number));
    const double seconds = static_cast<double>(clock() - begin) / CLOCKS_PER_SEC;

    ASSERT_FALSE(testing::Test::HasFatalFailure()) << what();
    ASSERT_LT(seconds, kSecondsMax) << what();
    if (!status.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(status)) << what();
    }
    for (char c : harness.replies[CallId(1'000 + number)].status.message()) {
      ASSERT_TRUE(c == '\n' || !IsControl(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80)
          << what();
    }
    harness.replies.clear();
    if (number % 7 == 0) host_.Apply();
    if (number % 50 == 0) harness.Advance(absl::Seconds(1));
  }

  Harness harness;

 private:
  FakeHost host_;
};

TEST(JobRecord, ASubmissionIsRecordedWithItsCaller) {
  Harness harness;
  v1::SubmitRequest request;
  *request.mutable_spec() = MakeSpec(2);
  request.set_job_id(kJob);
  request.set_default_run_root("/runs");

  harness.Handle(SubmitJob{CallId(9'001), request, JobId("fallback0001"), "the operator at 127.0.0.1:5012"});
  harness.Handle(SubmitJob{CallId(9'002), request, JobId("fallback0001"), "the operator at 127.0.0.1:5013"});

  EXPECT_THAT(harness.Decisions(kJob), Contains("operator: submit requested by the operator at 127.0.0.1:5012"));
  EXPECT_THAT(harness.Decisions(kJob), Not(Contains(HasSubstr("5013")))) << "a repeated call submits nothing";
}

TEST(JobRecord, SpecThatLeavesTooLittleSpaceInTheStore_IsRefused) {
  const auto spec_with_files = [](int files) {
    v1::JobSpec spec = MakeSpec(2);
    for (int i = 0; i < files; ++i) {
      spec.mutable_train()->mutable_data()->add_text(absl::StrCat("/", i, "/", std::string(300, 'x')));
    }
    return spec;
  };
  Harness harness;

  const absl::Status accepted = harness.Submit(spec_with_files(800), kJob).status;
  const absl::Status refused = harness.Submit(spec_with_files(2'000), "job00000002").status;

  EXPECT_TRUE(accepted.ok()) << accepted;
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the spec has 6"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("at most 655360 are accepted"));
  EXPECT_EQ(harness.core->state().jobs.size(), 1u);
}

TEST(JobRecord, AllCheckpointsKept_LeaveTheRecordBelowTheLimitOfTheStore) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  v1::JobSpec spec = MakeSpec(2);
  spec.mutable_checkpoint()->set_keep(0);
  ASSERT_TRUE(harness.Submit(spec, kJob).status.ok());
  BringToRunning(harness, host, kJob);

  for (uint64_t step = 1; step <= 1'000; ++step) {
    v1::Fact fact;
    fact.mutable_saved()->set_step(step);
    fact.mutable_saved()->set_path("/" + std::string(3'900, 'x'));
    fact.mutable_saved()->set_manifest_hash("a");
    host.ReportFact(Key(kJob, 1, 0), std::move(fact));
    ASSERT_FALSE(HasFatalFailure()) << "the checkpoint of step " << step;
  }

  const v1::Job job = harness.Get(kJob);
  EXPECT_GT(job.checkpoints_size(), 30);
  EXPECT_EQ(job.checkpoints(job.checkpoints_size() - 1).step(), 1'000u);
}

TEST(HostRecord, LongOutboxId_IsRefused) {
  Harness harness;
  FakeHost first(harness, "w1", 2, 11), second(harness, "w2", 2, 22);
  first.outbox_id = std::string(64, 'x');
  second.outbox_id = std::string(65, 'x');

  first.Attach();
  second.Attach();

  EXPECT_FALSE(first.refused());
  ASSERT_TRUE(second.refused());
  EXPECT_THAT(std::string(second.refusal().message()), HasSubstr("an outbox id of 65 bytes, must have at most 64"));
}

TEST(RequestFuzzer, NoRequest_EndsTheCore_BreaksAnInvariant_OrTakesLong) {
  uint64_t requests = 4'000;
  if (const char* variable = getenv("TRAINYARD_REQUESTS"); variable != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(variable, &requests));
  }
  const std::map<std::string, MakeEvent> methods = Methods();
  const auto& service = *v1::SubmitRequest::descriptor()->file()->service(0);
  std::unique_ptr<FuzzedCluster> cluster;

  for (uint64_t number = 0; number < requests; ++number) {
    // Jobs accumulate, and every invariant checks all of them.
    if (number % 200 == 0) cluster = std::make_unique<FuzzedCluster>();
    // Submit has most of the fields.
    const auto& method = number % 2 == 0 ? *service.FindMethodByName("Submit")
                                         : *service.method(static_cast<int>(number / 2 % service.method_count()));
    auto make = methods.find(method.name());
    ASSERT_NE(make, methods.end()) << "this test does not know the event for " << method.name();
    const Message& type = *google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type());
    cluster->Send(number, method.name(), make->second, type);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace trainyard
