// The runs of `trainctl parity` and its report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "client/parity_plan.h"
#include "client/parity_report.h"
#include "spec/prepare.h"

namespace trainyard::client {
namespace {

using ::testing::HasSubstr;

v1::JobSpec Job() {
  v1::JobSpec job;
  job.set_name("tiny");
  v1::Model& model = *job.mutable_train()->mutable_model();
  model.set_layers(1);
  model.set_heads(1);
  model.set_width(8);
  model.set_context(8);
  job.mutable_train()->mutable_data()->add_text("/data");
  job.mutable_train()->mutable_batch()->set_global_size(16);
  job.mutable_train()->set_steps(1000);
  job.mutable_train()->mutable_evaluate()->set_every_steps(10);
  job.mutable_train()->mutable_schedule()->set_warmup_steps(50);
  job.mutable_resources()->set_ranks(64);
  job.mutable_resources()->add_hosts("w1");
  return job;
}

TEST(ParityVariants, AreValidJobs_ThatDifferOnlyInLayout) {
  const std::vector<ParityVariant> variants = ParityVariants(Job(), {.steps = 20, .folder = "/runs"});

  ASSERT_EQ(variants.size(), 9u);
  EXPECT_EQ(ParitySlots(variants), 4u);
  std::set<std::string> folders;
  for (const ParityVariant& variant : variants) {
    auto job = PrepareJob(variant.spec, {.job_id = "abcdefgh", .default_run_root = ""});
    ASSERT_TRUE(job.ok()) << variant.name << ": " << job.status();
    EXPECT_TRUE(job->warnings.empty()) << variant.name << ": " << job->warnings[0];
    EXPECT_EQ(job->spec.train().steps(), 20u);
    EXPECT_EQ(job->spec.train().batch().micro(), 4u) << "small enough for four ranks";
    EXPECT_EQ(job->spec.train().evaluate().every_steps(), 0u);
    folders.insert(job->spec.checkpoint().dir());
  }
  EXPECT_EQ(folders.size(), variants.size());
  EXPECT_TRUE(variants[1].spec.diagnostics().reverse_micro_batches());
  EXPECT_FALSE(variants[0].spec.diagnostics().reverse_micro_batches());
}

TEST(ParityVariants, DivideAModelThatPermitsIt_AndHaveTheJobsOwnLayout) {
  v1::JobSpec job = Job();
  job.mutable_train()->mutable_model()->set_layers(4);
  job.mutable_train()->mutable_model()->set_heads(2);
  job.mutable_train()->mutable_batch()->set_global_size(48);
  job.mutable_resources()->set_ranks(4);
  job.mutable_parallel()->mutable_pipeline()->set_stages(2);
  job.mutable_parallel()->mutable_pipeline()->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);

  const std::vector<ParityVariant> variants = ParityVariants(job, {.steps = 20, .folder = "/runs"});

  ASSERT_EQ(variants.size(), 14u);
  EXPECT_EQ(ParitySlots(variants), 8u);
  EXPECT_EQ(variants[0].spec.parallel().pipeline().stages(), 0u) << "one process has no stages";
  EXPECT_EQ(variants[9].spec.parallel().tensor(), 2u);
  EXPECT_EQ(variants[10].spec.parallel().tensor(), 2u);
  EXPECT_TRUE(variants[10].spec.parallel().sequence());
  EXPECT_EQ(variants[12].spec.resources().ranks(), 8u);
  EXPECT_EQ(variants[13].spec.parallel().pipeline().schedule(), v1::PIPELINE_SCHEDULE_INTERLEAVED);
  for (const ParityVariant& variant : variants) {
    auto prepared = PrepareJob(variant.spec, {.job_id = "abcdefgh", .default_run_root = ""});
    ASSERT_TRUE(prepared.ok()) << variant.name << ": " << prepared.status();
    EXPECT_EQ(prepared->spec.train().batch().micro(), 3u) << "8 micro-batches in each of the job's two pipelines";
  }
}

const std::vector<ParityResult> kResults = {
    {"one process", {4.0, 2.0}}, {"reversed", {4.0, 2.002}}, {"ddp", {4.0, 2.0}}, {"fsdp", {4.0, 1.9999}}};

TEST(ParityReport, ShowsTheLargestRelativeDifference) {
  EXPECT_NEAR(LargestDifference(kResults[3], kResults[0]), 5e-5, 1e-12);
  EXPECT_NEAR(WorstDifference(kResults), 5e-5, 1e-12)
      << "the variant `reversed`, which measures the noise floor, does not count";
  const std::string text = ParityText(kResults);
  EXPECT_THAT(text, HasSubstr("step  one process  reversed"));
  EXPECT_THAT(text, HasSubstr("2     2.000000000  2.002000000  2.000000000  1.999900000"));
  EXPECT_THAT(text, HasSubstr("fsdp         5.0e-05\n"));
  EXPECT_THAT(ParityJson(kResults), HasSubstr("\"worst\":4.99999999999"));
}

TEST(ParityReport, MissingOrInfiniteLoss_IsAnInfiniteDifference) {
  EXPECT_TRUE(std::isinf(LargestDifference({"short", {4.0}}, kResults[0])));
  EXPECT_TRUE(std::isinf(LargestDifference({"nan", {4.0, NAN}}, kResults[0])));
  EXPECT_THAT(ParityText({kResults[0], {"short", {4.0}}}), HasSubstr("2     2.000000000  -\n"));
}

}  // namespace
}  // namespace trainyard::client
