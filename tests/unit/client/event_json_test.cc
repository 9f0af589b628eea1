// The JSON lines that other programs read: their keys, types and precision are an interface.
#include "client/event_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tests/unit/client/events.h"

namespace trainyard::client {
namespace {

TEST(EventLine, Step_HasNumbersWithFullPrecision) {
  v1::Event event = StepEvent(7, 3, 0.1 + 0.2, 0.25, 1500);
  event.mutable_step()->set_lr(3e-4);

  EXPECT_EQ(EventLine(event),
            R"({"event":"step","step":3,"loss":0.30000000000000004,"tokens_per_s":4000.0,"tokens":1000,"step_s":0.25,)"
            R"("lr":0.0003,"grad_norm":0.0,"compute_s":0.0,"exposed_communication_s":0.0,"optimizer_s":0.0,)"
            R"("sequence":7,"generation":1,"time_s":1.5})");
}

TEST(EventLine, Step_ContainsMemoryByKind) {
  v1::Event event = StepEvent(7, 3, 2.5);
  v1::MemoryUse& use = *event.mutable_step()->add_memory();
  use.set_kind("optimizer");
  use.set_bytes(12);
  use.set_peak_bytes(34);

  auto json = nlohmann::json::parse(EventLine(event));

  EXPECT_EQ(json["memory"].dump(), R"({"optimizer":{"bytes":12,"peak_bytes":34}})");
}

TEST(EventLine, NonFiniteLoss_IsNull) {
  auto json = nlohmann::json::parse(EventLine(StepEvent(1, 1, std::numeric_limits<double>::quiet_NaN())));
  EXPECT_TRUE(json["loss"].is_null());
}

TEST(EventLine, OtherKinds_HaveTheirOwnKeys) {
  EXPECT_EQ(EventLine(StateEvent(1, v1::JOB_STATE_RUNNING, "all \"ready\"")),
            R"({"event":"state","state":"RUNNING","reason":"all \"ready\"","restarts":0,"sequence":1,"generation":0,)"
            R"("time_s":0.0})");
  EXPECT_EQ(
      EventLine(EvalEvent(2, 20, 1.5)),
      R"({"event":"eval","step":20,"loss":1.5,"tokens":0,"seconds":0.25,"sequence":2,"generation":0,"time_s":0.0})");
  auto checkpoint = nlohmann::json::parse(EventLine(CheckpointEvent(3, 20)));
  EXPECT_EQ(checkpoint["event"], "checkpoint");
  EXPECT_EQ(checkpoint["path"], "/runs/x/step-20");
  v1::Event notice;
  notice.mutable_notice()->set_level("warning");
  notice.mutable_notice()->set_text("two\nlines");
  EXPECT_EQ(EventLine(notice),
            R"({"event":"notice","level":"warning","text":"two\nlines","sequence":0,"generation":0,"time_s":0.0})");
}

TEST(EventLine, IsOneLine_WhateverTheTextContains) {
  EXPECT_EQ(NoticeLine("info", "a\nb\x01").find('\n'), std::string::npos);
  EXPECT_EQ(EventLine(StateEvent(1, v1::JOB_STATE_FAILED, "bad\n\xff")).find('\n'), std::string::npos);
}

TEST(JobLine, NamesTheJobFirst) {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.mutable_spec()->mutable_train()->set_steps(10);
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/tiny");
  job.add_warnings("careful");
  auto* decision = job.add_decisions();
  decision->set_key("resources.device");
  decision->set_value("cpu");
  decision->set_reason("because");

  EXPECT_EQ(JobLine(job),
            R"({"event":"job","id":"k3x7q2ab","name":"tiny","ranks":2,"steps":10,"dir":"/runs/tiny",)"
            R"("decisions":[{"key":"resources.device","value":"cpu","reason":"because"}],"warnings":["careful"]})");
}

TEST(DoneLine, ContainsStateExitCodeAndCheckpoint) {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.set_state(v1::JOB_STATE_SUCCEEDED);
  job.set_last_step(2);
  *job.add_checkpoints() = CheckpointEvent(1, 2).checkpoint();
  RunStats stats;
  stats.Add(StepEvent(1, 1, 5.0));
  stats.Add(StepEvent(2, 2, 4.0));

  auto json = nlohmann::json::parse(DoneLine(job, stats, 0));

  EXPECT_EQ(json["event"], "done");
  EXPECT_EQ(json["state"], "SUCCEEDED");
  EXPECT_EQ(json["id"], "k3x7q2ab");
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_EQ(json["last_loss"], 4.0);
  EXPECT_EQ(json["tokens_per_s"], 2000.0);
  EXPECT_EQ(json["checkpoint"], "/runs/x/step-2");
  EXPECT_TRUE(json["eval_loss"].is_null());
}

TEST(DoneLine, HasNoRunFolderForViewers) {
  v1::Job job;
  job.mutable_spec()->set_name("tiny");

  const auto hidden = nlohmann::json::parse(DoneLine(job, RunStats(), 0));
  job.mutable_spec()->mutable_train()->set_steps(10);
  job.mutable_spec()->mutable_checkpoint()->set_dir("/runs/tiny");
  const auto shown = nlohmann::json::parse(DoneLine(job, RunStats(), 0));

  EXPECT_TRUE(hidden["dir"].is_null());
  EXPECT_EQ(shown["dir"], "/runs/tiny");
}

TEST(JobJson, HasStateAndGenerationAtItsTopLevel) {
  v1::Job job;
  job.set_job_id("k3x7q2ab");
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_generation(3);
  auto* rank = job.add_ranks();
  rank->set_host("h1");
  rank->set_last_report_age_s(0.5);

  auto json = nlohmann::json::parse(JobJson(job));

  EXPECT_EQ(json["state"], "QUEUED");
  EXPECT_EQ(json["generation"], 3);
  EXPECT_EQ(json["ranks"][0]["last_report_age_s"], 0.5);
  EXPECT_EQ(json["ranks"][0]["host"], "h1");
}

TEST(JobJson, HasNullsForASpecThatViewersDoNotSee) {
  v1::Job job;
  job.mutable_spec()->set_name("tiny");
  job.mutable_spec()->mutable_resources()->set_ranks(2);
  job.add_ranks();

  const auto hidden = nlohmann::json::parse(JobJson(job));
  job.mutable_spec()->mutable_train()->set_steps(10);
  const auto shown = nlohmann::json::parse(JobJson(job));

  EXPECT_TRUE(hidden["namespace"].is_null() && hidden["steps"].is_null() && hidden["ranks"][0]["stage"].is_null());
  EXPECT_EQ(shown["namespace"], "default");
  EXPECT_EQ(shown["steps"], 10);
  EXPECT_EQ(shown["ranks"][0]["stage"], 0);
}

}  // namespace
}  // namespace trainyard::client
