// A job and machines for tests of the planner.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "planner/machines.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard::planner {

// Llama 2 7B in bf16, with 64 sequences of 2,048 tokens in a step.
inline constexpr char kJobOf7b[] = R"(name: planned
train:
  model: {preset: llama2-7b}
  data: {text: [corpus]}
  batch: {global: 64, length: 2048}
  precision: bf16
  steps: 10
)";

inline v1::JobSpec ReadGoodJob(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const ReadJob read = Read(text, overrides);
  EXPECT_EQ(read.Errors(), "");
  return read.spec;
}

inline v1::JobSpec ResolvedJob(const v1::JobSpec& spec) {
  auto prepared = PrepareJob(spec, {.job_id = "id", .default_run_root = "/runs"});
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return prepared.ok() ? prepared->spec : v1::JobSpec();
}

struct PoolSizes {
  uint64_t hosts = 1;
  uint64_t ranks_per_host = 8;
  double inside = 450e9;  // bytes per second
  double between = 50e9;
  uint64_t memory_bytes = 80'000'000'000;
};

// H100s.
inline Pool PoolOfGpus(const PoolSizes& sizes) {
  return {.name = "gpus",
          .device = v1::DEVICE_CUDA,
          .hosts = sizes.hosts,
          .ranks_per_host = sizes.ranks_per_host,
          .memory_bytes = sizes.memory_bytes,
          .host_memory_bytes = 0,
          .memory_bytes_per_s = 3.35e12,
          .host_bytes_per_s = 25e9,
          .flops = {.fp32 = 67e12, .fp64 = 34e12, .bf16 = 989e12, .fp16 = 989e12},
          .efficiency = 0.45,
          .block_overhead_s = 5e-5,
          .inside = {.bytes_per_s = sizes.inside, .latency_s = 5e-6},
          .between = {.bytes_per_s = sizes.between, .latency_s = 2e-5}};
}

}  // namespace trainyard::planner
