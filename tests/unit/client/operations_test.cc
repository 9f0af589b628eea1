// Hosts, decisions, goodput and reconnecting, as text and as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "client/chain.h"
#include "client/goodput_view.h"
#include "client/hosts_view.h"
#include "client/log_cursor.h"
#include "client/retry.h"
#include "tests/unit/client/events.h"

namespace trainyard::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

v1::ListHostsResponse TwoHosts() {
  v1::ListHostsResponse hosts;
  v1::HostStatus& w1 = *hosts.add_hosts();
  w1.set_name("w1");
  w1.set_attached(true);
  w1.set_reachable(true);
  w1.set_slots(2);
  w1.set_slots_free(1);
  w1.add_jobs("k3x7q2ab");
  w1.set_version("0.1.0");
  w1.set_clock_offset_s(-0.0125);
  w1.set_disk_free_bytes(uint64_t{3} << 30);
  (*w1.mutable_labels())["switch"] = "s1";
  (*w1.mutable_labels())["rack"] = "r1";
  v1::HostStatus& w2 = *hosts.add_hosts();
  w2.set_name("w2");
  w2.set_last_heard_s(190);
  w2.set_slots(1);
  w2.set_cordoned(true);
  w2.set_cordon_reason("fan is loud");
  return hosts;
}

TEST(Hosts, TableShowsStateSlotsJobsLabelsVersionAndSkew) {
  EXPECT_EQ(HostTable(TwoHosts()),
            "HOST  STATE                 SLOTS  JOBS      LABELS             VERSION  SKEW      DISK FREE\n"
            "w1    up                    1/2    k3x7q2ab  rack=r1,switch=s1  0.1.0    -0.013 s  3.0 GiB\n"
            "w2    away 3m10s, cordoned  1/1    -         -                  -        -         -\n"
            "w2 is cordoned: fan is loud\n");
}

TEST(Hosts, Table_ListsProblemsAndFitsSixtyColumns) {
  v1::ListHostsResponse hosts = TwoHosts();
  hosts.mutable_hosts(0)->set_trouble("its state folder /var/lib/trainyard is gone");
  hosts.mutable_hosts(0)->add_unknown_jobs("ab12cd34");

  const std::string table = HostTable(hosts, 60);

  EXPECT_THAT(table, HasSubstr("w1    up, in trouble"));
  EXPECT_THAT(table, HasSubstr("w1 cannot be given ranks: its state folder /var/lib/trainyard is gone\n"));
  EXPECT_THAT(table,
              HasSubstr("w1 runs a job that this coordinator does not know: ab12cd34; trainctl cancel ends it\n"));
  for (absl::string_view line : absl::StrSplit(table.substr(0, table.find("w1 cannot")), '\n')) {
    EXPECT_LE(line.size(), 60u) << table;
  }
  EXPECT_EQ(nlohmann::json::parse(HostJson(hosts.hosts(0)))["unknown_jobs"][0], "ab12cd34");
}

TEST(Hosts, JsonHasNumbersAsNumbers) {
  v1::HostStatus host = TwoHosts().hosts(0);
  v1::Gpu& gpu = *host.add_gpu_devices();
  gpu.set_index(3);
  gpu.set_name("H200");
  gpu.set_memory_bytes(uint64_t{139} << 30);
  host.set_gpu_note("none");
  auto json = nlohmann::json::parse(HostJson(host));

  EXPECT_EQ(json["gpu_devices"][0]["index"], 3);
  EXPECT_EQ(json["gpu_devices"][0]["name"], "H200");
  EXPECT_EQ(json["gpu_note"], "none");
  EXPECT_EQ(json["name"], "w1");
  EXPECT_EQ(json["slots_free"], 1);
  EXPECT_EQ(json["labels"]["rack"], "r1");
  EXPECT_EQ(json["clock_offset_s"], -0.0125);
  EXPECT_TRUE(json["reachable"].get<bool>());
}

v1::Event NoticeEvent(uint64_t generation, const std::string& rule, const std::string& text) {
  v1::Event event;
  event.set_generation(generation);
  event.set_time_unix_ms(3'723'500);  // 01:02:03.500 of the first day
  event.mutable_notice()->set_level("warning");
  event.mutable_notice()->set_rule(rule);
  event.mutable_notice()->set_text(text);
  return event;
}

v1::ListEventsResponse EventsOfTwoGenerations() {
  v1::ListEventsResponse events;
  *events.add_events() = StateEvent(1, v1::JOB_STATE_QUEUED, "accepted");
  *events.add_events() = StateEvent(2, v1::JOB_STATE_RUNNING, "all 2 ranks are ready");
  events.mutable_events(1)->set_generation(1);
  *events.add_events() = NoticeEvent(1, "", "no decision");
  events.mutable_events(2)->mutable_notice()->set_level("info");
  *events.add_events() = NoticeEvent(1, "", "host w2 is unreachable");
  *events.add_events() = NoticeEvent(1, "hang", "rank 1 on w2 is stopped\nand waits in nothing");
  *events.add_events() = CheckpointEvent(9, 3);
  *events.add_events() = StateEvent(10, v1::JOB_STATE_PLACED, "2 ranks on w1, w3");
  events.mutable_events(6)->set_generation(2);
  return events;
}

v1::Job SomeJob() {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.set_state(v1::JOB_STATE_PLACED);
  job.set_generation(2);
  job.set_restarts(1);
  return job;
}

TEST(Why, ListsOnlyDecisionsAndWarnings_ByGeneration) {
  EXPECT_EQ(WhyText(SomeJob(), EventsOfTwoGenerations(),
                    {.zone = absl::UTCTimeZone(), .now = absl::UnixEpoch(), .job_ids = false}),
            "job k3x7q2ab (tiny): PLACED, generation 2, restarts 1\n"
            "  00:00:00.000  queued        accepted\n"
            "generation 1\n"
            "  00:00:00.000  running       all 2 ranks are ready\n"
            "  01:02:03.500  warning       host w2 is unreachable\n"
            "  01:02:03.500  [hang]        rank 1 on w2 is stopped\n"
            "                            and waits in nothing\n"
            "generation 2\n"
            "  00:00:00.000  placed        2 ranks on w1, w3\n");
}

TEST(Why, ReportsAnUndisturbedJob_OnlyWithoutDisturbances) {
  v1::Job job = SomeJob();
  job.set_restarts(0);
  v1::ListEventsResponse undisturbed;
  *undisturbed.add_events() = StateEvent(1, v1::JOB_STATE_QUEUED, "accepted");
  *undisturbed.add_events() = NoticeEvent(1, "placement", "generation 1: 2 ranks on w1, w2");
  undisturbed.mutable_events(1)->mutable_notice()->set_level("info");
  const EventTextOptions options{.zone = absl::UTCTimeZone(), .now = absl::UnixEpoch(), .job_ids = false};
  EXPECT_THAT(WhyText(job, undisturbed, options), HasSubstr("nothing disturbed the job"));
  EXPECT_FALSE(WasDisturbed(job, undisturbed));

  for (const char* rule : {"", "network", "disk", "hang"}) {
    v1::ListEventsResponse disturbed = undisturbed;
    *disturbed.add_events() = NoticeEvent(1, rule, "something is wrong");
    EXPECT_THAT(WhyText(job, disturbed, options), Not(HasSubstr("nothing disturbed"))) << rule;
  }
  EXPECT_THAT(WhyText(SomeJob(), undisturbed, options), Not(HasSubstr("nothing disturbed"))) << "the job was restarted";
}

TEST(Why, DroppedEvents_LeaveDisturbanceUnknown) {
  v1::Job job = SomeJob();
  job.set_restarts(0);
  job.set_events_dropped(12);
  v1::ListEventsResponse undisturbed;
  *undisturbed.add_events() = StateEvent(1, v1::JOB_STATE_QUEUED, "accepted");
  const EventTextOptions options{.zone = absl::UTCTimeZone(), .now = absl::UnixEpoch(), .job_ids = false};

  EXPECT_THAT(WhyText(job, undisturbed, options), Not(HasSubstr("nothing disturbed")));
  EXPECT_THAT(WhyText(job, undisturbed, options), HasSubstr("12 older events have been dropped"));
  auto json = nlohmann::json::parse(WhyJson(job, undisturbed));
  EXPECT_EQ(json["events_dropped"], 12);
  EXPECT_TRUE(json["disturbed"].is_null());
  job.set_restarts(1);
  EXPECT_EQ(nlohmann::json::parse(WhyJson(job, undisturbed))["disturbed"], true);
}

TEST(Why, JsonIsOneObjectWithTheChain) {
  auto json = nlohmann::json::parse(WhyJson(SomeJob(), EventsOfTwoGenerations()));

  EXPECT_EQ(json["state"], "PLACED");
  ASSERT_EQ(json["chain"].size(), 5u);
  EXPECT_EQ(json["chain"][3]["rule"], "hang");
  EXPECT_EQ(json["chain"][3]["generation"], 1);
  EXPECT_EQ(json["chain"][3]["time_s"], 3723.5);
}

TEST(Events, OfTheCluster_ShowTheirSubject_AndTheDateOfPastDays) {
  v1::Event event = StateEvent(1, v1::JOB_STATE_RUNNING, "all are ready");
  event.set_job_id("k3x7q2ab");
  event.set_generation(3);
  v1::Event host = NoticeEvent(0, "operator", "cordoned");
  host.set_host("w2");
  const EventTextOptions options{
      .zone = absl::UTCTimeZone(), .now = absl::UnixEpoch() + absl::Hours(50), .job_ids = true};

  EXPECT_EQ(EventText(event, options), "1970-01-01 00:00:00.000  k3x7q2ab g3    running       all are ready");
  EXPECT_EQ(EventText(host, options), "1970-01-01 01:02:03.500  host w2        [operator]    cordoned");
}

v1::Job JobWithGoodput() {
  v1::Job job = SomeJob();
  v1::Goodput& goodput = *job.mutable_goodput();
  goodput.set_total_s(100);
  goodput.set_queue_s(5);
  goodput.set_start_s(3);
  goodput.set_train_s(80);
  goodput.set_save_s(4);
  goodput.set_lost_s(2);
  goodput.set_detect_s(1);
  goodput.set_recover_s(3);
  goodput.set_pause_s(2);
  return job;
}

TEST(Goodput, PartsAddUpToTheWhole) {
  double sum = 0;
  for (const GoodputPart& part : GoodputParts(JobWithGoodput().goodput())) sum += part.seconds;

  EXPECT_EQ(sum, 100);
  EXPECT_EQ(GoodputShare(JobWithGoodput().goodput()), 0.8);
  EXPECT_EQ(GoodputShare({}), 0);
}

TEST(Goodput, TableHasEveryPartAndTheSum) {
  std::string text = GoodputText(JobWithGoodput());

  EXPECT_EQ(text.substr(0, text.find('\n')), "job k3x7q2ab (tiny): PLACED, goodput 80.0 %");
  for (const char* row :
       {"queue    5.000 s       5.0 %", "train    80.000 s      80.0 %", "lost     2.000 s       2.0 %",
        "sum      100.000 s     100.0 %  of 100.000 rank-seconds: 2 ranks for 50 s"}) {
    EXPECT_NE(text.find(row), std::string::npos) << row << "\n" << text;
  }
  auto json = nlohmann::json::parse(GoodputJson(JobWithGoodput().goodput()));
  EXPECT_EQ(json["sum_s"], 100.0);
  EXPECT_EQ(json["shares"]["save"], 0.04);
}

TEST(Retries, BackoffDoublesUpToALimit_AndResetsOnAnswer) {
  const absl::Time t = absl::UnixEpoch();
  Retry retry({});
  std::vector<absl::Duration> waits;
  for (int i = 0; i < 7; ++i) waits.push_back(*retry.Failed(t));

  EXPECT_THAT(waits, ElementsAre(absl::Milliseconds(50), absl::Milliseconds(100), absl::Milliseconds(200),
                                 absl::Milliseconds(400), absl::Milliseconds(800), absl::Seconds(1), absl::Seconds(1)));
  EXPECT_TRUE(retry.is_unanswered());
  EXPECT_TRUE(retry.Failed(t + absl::Hours(1000)).has_value());
  retry.Answered();
  EXPECT_FALSE(retry.is_unanswered());
  EXPECT_EQ(retry.Failed(t), absl::Milliseconds(50));
}

TEST(Retries, EndAtTheTimeLimit) {
  const absl::Time t = absl::UnixEpoch();
  Retry retry({.give_up_after = absl::Milliseconds(60)});

  EXPECT_EQ(retry.Failed(t), absl::Milliseconds(50));
  EXPECT_EQ(retry.Failed(t + absl::Milliseconds(50)), absl::Milliseconds(10));
  EXPECT_FALSE(retry.Failed(t + absl::Milliseconds(60)).has_value());
}

TEST(Retries, ParseReconnectDuration_AcceptsDurationsOnly) {
  EXPECT_EQ(ParseReconnectDuration("30s"), absl::Seconds(30));
  EXPECT_EQ(ParseReconnectDuration("1h30m"), absl::Minutes(90));
  EXPECT_EQ(ParseReconnectDuration("2.5"), absl::Milliseconds(2500));
  EXPECT_EQ(ParseReconnectDuration("0"), absl::ZeroDuration());
  EXPECT_EQ(ParseReconnectDuration("forever"), absl::InfiniteDuration());
  for (const char* bad : {"", "soon", "-1", "-5m", "inf", "nan"})
    EXPECT_FALSE(ParseReconnectDuration(bad).has_value()) << bad;
}

v1::LogLine Line(uint32_t rank, const std::string& text, bool is_stderr = false) {
  v1::LogLine line;
  line.set_generation(1);
  line.set_rank(rank);
  line.set_is_stderr(is_stderr);
  line.set_text(text);
  return line;
}

// Reconnects after a lost connection: searches the stored output `all` for new lines, then follows a stream of `all`
// and `later`. Returns the lines that are shown.
std::vector<std::string> LinesAfterReconnect(LogCursor& cursor, const std::vector<v1::LogLine>& all,
                                             const std::vector<v1::LogLine>& later) {
  std::vector<std::string> shown;
  LogCursor::Search search = cursor.Resume();
  for (const v1::LogLine& line : all) search.Add(line);
  for (const v1::LogLine& line : search.NewLines()) shown.push_back(line.text());
  for (const std::vector<v1::LogLine>* part : {&all, &later}) {
    for (const v1::LogLine& line : *part) {
      if (!cursor.IsNew(line)) continue;
      cursor.RecordShown(line);
      shown.push_back(line.text());
    }
  }
  return shown;
}

TEST(LogCursor, AfterReconnect_EveryLineIsShownOnce) {
  LogCursor cursor;
  for (const char* text : {"a", "b", "a"}) cursor.RecordShown(Line(0, text));
  cursor.RecordShown(Line(1, "x"));

  EXPECT_THAT(
      LinesAfterReconnect(
          cursor, {Line(0, "a"), Line(0, "b"), Line(0, "a"), Line(1, "x"), Line(0, "c"), Line(1, "y"), Line(2, "z")},
          {Line(0, "d")}),
      ElementsAre("c", "y", "z", "d"));
  // The same after a second lost connection.
  EXPECT_THAT(LinesAfterReconnect(
                  cursor, {Line(0, "a"), Line(0, "b"), Line(0, "a"), Line(0, "c"), Line(0, "d"), Line(0, "e")}, {}),
              ElementsAre("e"));
}

TEST(LogCursor, Tail_IsFoundInTheStoredOutput) {
  LogCursor cursor;
  for (const char* text : {"step 8", "step 9"}) cursor.RecordShown(Line(0, text));
  std::vector<v1::LogLine> all;
  for (int i = 0; i < 12; ++i) all.push_back(Line(0, "step " + std::to_string(i)));

  EXPECT_THAT(LinesAfterReconnect(cursor, all, {}), ElementsAre("step 10", "step 11"));
}

TEST(LogCursor, ProgressBars_AreNotLookedForInTheStoredOutput) {
  LogCursor cursor;
  std::vector<v1::LogLine> bars = {Line(0, "40%"), Line(0, "50%"), Line(0, "60%")};
  for (v1::LogLine& bar : bars) bar.set_is_progress(true);
  for (const v1::LogLine& line : {Line(0, "a"), bars[0], Line(0, "b"), bars[1]}) cursor.RecordShown(line);

  EXPECT_THAT(LinesAfterReconnect(cursor, {Line(0, "a"), Line(0, "b"), bars[2]}, {Line(0, "c")}),
              ElementsAre("60%", "c"));
}

TEST(LogCursor, OutputThatTheTailLeftOut_IsNotNew) {
  LogCursor cursor(/*tail=*/1);
  std::vector<v1::LogLine> all = {Line(0, "step 1"), Line(0, "warning 1", true), Line(0, "warning 2", true),
                                  Line(0, "step 2"), Line(0, "step 3")};
  for (size_t i = 1; i < all.size(); ++i) all[i].set_generation(2);
  cursor.RecordShown(all[3]);

  EXPECT_THAT(LinesAfterReconnect(cursor, all, {}), ElementsAre("warning 2", "step 3"));
}

TEST(LogCursor, IfTheShownLinesAreNoLongerStored_AllLinesAreNew) {
  LogCursor cursor;
  cursor.RecordShown(Line(0, "long gone"));

  EXPECT_THAT(LinesAfterReconnect(cursor, {Line(0, "p"), Line(0, "q")}, {}), ElementsAre("p", "q"));
}

TEST(LogCursor, StreamsOfARank_HaveSeparatePositions) {
  LogCursor cursor;
  cursor.RecordShown(Line(0, "out", false));

  EXPECT_THAT(LinesAfterReconnect(cursor, {Line(0, "out", true), Line(0, "out", false)}, {}), ElementsAre("out"));
}

}  // namespace
}  // namespace trainyard::client
