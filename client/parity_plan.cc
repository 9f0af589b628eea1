#include "client/parity_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/problems.h"
#include "spec/job_layout.h"
#include "spec/model_parallel_rules.h"
#include "spec/parallel_rules.h"

namespace trainyard::client {
namespace {

constexpr uint32_t kRanks = 2;
constexpr uint32_t kHybridSide = 2;

// The size of a micro-batch of all variants: small enough for the variant with the most data ranks, and such that
// the job's own layout can run its schedule.
uint32_t MicroOf(const v1::JobSpec& job) {
  const JobLayout layout = LayoutOf(job);
  return static_cast<uint32_t>(layout.divides_model()
                                   ? DecidedMicro(job, layout.data_ranks())
                                   : AutoMicro(job.train().batch().global_size(), kHybridSide * kHybridSide));
}

// Whether the model can be divided like this.
bool IsPossible(const v1::JobSpec& spec) {
  Problems problems;
  CheckModelParallel(spec, spec.resources().ranks(), {}, &problems);
  return problems.ok();
}

v1::JobSpec Common(const v1::JobSpec& job, uint64_t steps) {
  v1::JobSpec spec = job;
  v1::Train& train = *spec.mutable_train();
  train.set_steps(steps);
  train.clear_evaluate();
  // The warm-up and the decay may be longer than these few steps; otherwise the learning-rate schedule is the job's.
  v1::Schedule& schedule = *train.mutable_schedule();
  schedule.set_warmup_steps(std::min(schedule.warmup_steps(), steps));
  if (schedule.warmup_steps() + schedule.decay_steps() > steps) schedule.clear_decay_steps();
  if (!train.batch().has_micro()) train.mutable_batch()->set_micro(MicroOf(job));
  spec.mutable_checkpoint()->clear_every_steps();
  spec.mutable_checkpoint()->clear_keep_best();
  spec.mutable_recovery()->set_max_restarts(0);
  v1::Parallel parallel;
  if (job.parallel().has_bucket_elements()) parallel.set_bucket_elements(job.parallel().bucket_elements());
  if (job.parallel().has_overlap()) parallel.set_overlap(job.parallel().overlap());
  *spec.mutable_parallel() = parallel;
  spec.clear_diagnostics();
  // If the device is not set, the number of ranks would decide it.
  if (!job.resources().has_device()) spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.mutable_resources()->clear_hosts();
  spec.mutable_resources()->clear_exclude_hosts();
  return spec;
}

}  // namespace

std::vector<ParityVariant> ParityVariants(const v1::JobSpec& job, const ParityOptions& options) {
  const v1::JobSpec common = Common(job, options.steps);
  std::vector<ParityVariant> variants;
  auto add = [&](const char* name, v1::DataParallel strategy, uint32_t ranks) -> v1::JobSpec& {
    ParityVariant& variant = variants.emplace_back();
    variant.name = name;
    variant.spec = common;
    variant.spec.mutable_parallel()->set_data(strategy);
    variant.spec.mutable_resources()->set_ranks(ranks);
    variant.spec.mutable_checkpoint()->set_dir(JoinPath(options.folder, absl::StrCat("variant-", variants.size())));
    return variant.spec;
  };
  add("one process", v1::DATA_PARALLEL_DDP, 1);
  add("reversed", v1::DATA_PARALLEL_DDP, 1).mutable_diagnostics()->set_reverse_micro_batches(true);
  add("ddp", v1::DATA_PARALLEL_DDP, kRanks);
  add("zero1", v1::DATA_PARALLEL_ZERO1, kRanks);
  add("zero2", v1::DATA_PARALLEL_ZERO2, kRanks);
  add("zero3", v1::DATA_PARALLEL_ZERO3, kRanks);
  add("fsdp", v1::DATA_PARALLEL_FSDP, kRanks);
  // In the message, reshard_after_forward 1 stands for `false` of job files.
  add("fsdp, kept", v1::DATA_PARALLEL_FSDP, kRanks).mutable_parallel()->set_reshard_after_forward(1);
  v1::Parallel& hybrid = *add("hsdp 2 x 2", v1::DATA_PARALLEL_HSDP, kHybridSide * kHybridSide).mutable_parallel();
  hybrid.set_shard(kHybridSide);
  hybrid.set_replicate(kHybridSide);
  const auto add_if_possible = [&](const char* name, v1::DataParallel strategy, uint32_t ranks,
                                   const v1::Parallel& parallel) {
    v1::JobSpec& spec = add(name, strategy, ranks);
    spec.mutable_parallel()->MergeFrom(parallel);
    if (!IsPossible(spec)) variants.pop_back();
  };
  v1::Parallel tensor, sequence, pipeline, both;
  tensor.set_tensor(kRanks);
  sequence.set_tensor(kRanks);
  sequence.set_sequence(true);
  pipeline.mutable_pipeline()->set_stages(kRanks);
  both.set_tensor(kRanks);
  both.mutable_pipeline()->set_stages(kRanks);
  add_if_possible("tensor 2", v1::DATA_PARALLEL_DDP, kRanks, tensor);
  add_if_possible("tensor 2, sequence", v1::DATA_PARALLEL_DDP, kRanks, sequence);
  add_if_possible("pipeline 2", v1::DATA_PARALLEL_DDP, kRanks, pipeline);
  add_if_possible("3d, zero1", v1::DATA_PARALLEL_ZERO1, kRanks * kRanks * kRanks, both);
  if (LayoutOf(job).divides_model()) {
    *add("the job's own", job.parallel().data(), job.resources().ranks()).mutable_parallel() = job.parallel();
  }
  return variants;
}

uint32_t ParitySlots(const std::vector<ParityVariant>& variants) {
  uint32_t slots = 1;
  for (const ParityVariant& variant : variants) slots = std::max(slots, variant.spec.resources().ranks());
  return slots;
}

}  // namespace trainyard::client
