#include "worker/link/link_messages.h"

#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/plain_text.h"
#include "common/status_macros.h"
#include "worker/link/same_computation.h"
#include "worker/link/spec_config.h"

namespace trainyard {
namespace {

// The longest error message in a fact; the complete text is in the trainer's log.
constexpr size_t kMessageBytes = 4 << 10;

// Returns the beginning of `text` as protobuf accepts it: bytes that are not UTF-8 become '?'.
std::string CleanText(absl::string_view text) { return ValidUtf8(text.substr(0, kMessageBytes), kMessageBytes, "?"); }

void FillRestored(const RestoredFact& fact, v1::RestorePoint& restored) {
  restored.set_step(fact.step);
  restored.set_path(fact.path);
  restored.set_manifest_hash(fact.manifest_hash);
  for (const std::string& sentence : fact.passed_over) {
    if (restored.passed_over_size() == limits::kRejectedCheckpointsReported) break;
    restored.add_passed_over(CleanText(sentence));
  }
  for (const KeyChange& change : fact.changes) {
    v1::ResolvedKey& key = *restored.add_changes();
    key.set_key(change.key);
    key.set_value(CleanText(absl::StrCat(change.before, " -> ", change.now)));
  }
}

}  // namespace

absl::StatusOr<StartOrder> OrderFromMessage(const v1::StartTrainer& message) {
  const v1::DesiredTrainer& trainer = message.trainer();
  StartOrder order;
  order.job_id = trainer.key().job_id();
  order.generation = trainer.key().generation();
  order.rank = static_cast<int>(trainer.key().rank());
  order.world_size = static_cast<int>(trainer.world_size());
  order.threads = trainer.threads() == 0 ? 1 : static_cast<int>(trainer.threads());
  order.host = message.host();
  order.data_address = trainer.data_address();
  order.local_rank = static_cast<int>(trainer.local_rank());
  order.local_world_size = static_cast<int>(trainer.local_world_size());
  order.resume = trainer.resume();
  order.allow_fresh_start = trainer.allow_fresh_start();
  if (trainer.has_restart_from()) order.restart_step = trainer.restart_from().step();
  for (const v1::CheckpointGrant& grant : trainer.grants()) {
    if (grant.refused()) continue;
    order.grants.push_back(
        {.step = grant.step(), .generation = grant.generation(), .manifest_hash = grant.manifest_hash()});
  }
  order.spec_bytes = trainer.spec();
  order.spec_digest = HashHex(order.spec_bytes);
  if (order.world_size < 1 || order.rank >= order.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", order.rank, " is not below the world size of ", order.world_size));
  }
  ASSIGN_OR_RETURN(order.config, ConfigFromSpec(order.spec_bytes));
  if (trainer.device() == v1::DEVICE_CUDA) order.config.device = TrainConfig::Device::kCuda;
  order.compare_spec = [now = order.spec_bytes, allow = order.config.allow_data_change](absl::string_view before) {
    return CompareComputation({.before = before, .now = now, .allow_data_change = allow});
  };
  return order;
}

v1::Fact ToMessage(const TrainerFact& fact) {
  struct Visitor {
    v1::Fact message;
    void operator()(const RegisteredFact& f) { message.mutable_registered()->set_spec_digest(f.spec_digest); }
    void operator()(const ReadyFact& f) {
      message.mutable_ready()->set_first_step(f.first_step);
      message.mutable_ready()->set_parameters(f.parameters);
    }
    void operator()(const SavedFact& f) {
      v1::CheckpointSaved& saved = *message.mutable_saved();
      saved.set_step(f.step);
      saved.set_path(f.path);
      saved.set_manifest_hash(f.manifest_hash);
      saved.set_size_bytes(f.size_bytes);
      saved.set_seconds(f.seconds);
      if (f.stall_s.has_value()) saved.set_stall_s(*f.stall_s);
    }
    void operator()(const SaveFailedFact& f) {
      message.mutable_save_failed()->set_step(f.step);
      message.mutable_save_failed()->set_message(CleanText(f.message));
      message.mutable_save_failed()->set_stop_request(f.stop_request);
      message.mutable_save_failed()->set_withdrawn(f.withdrawn);
      message.mutable_save_failed()->set_will_retry(f.will_retry);
      message.mutable_save_failed()->set_is_last(f.is_last);
    }
    void operator()(const SaveReadyFact& f) {
      v1::CheckpointReady& ready = *message.mutable_save_ready();
      ready.set_step(f.step);
      ready.set_path(f.path);
      ready.set_manifest_hash(f.manifest_hash);
      ready.set_size_bytes(f.size_bytes);
    }
    void operator()(const BrokenFact& f) {
      message.mutable_broken()->set_step(f.step);
      message.mutable_broken()->set_message(CleanText(f.message));
    }
    void operator()(const FinishedFact& f) {
      message.mutable_finished()->set_step(f.step);
      message.mutable_finished()->set_stopped(f.stopped);
      message.mutable_finished()->set_loss(f.loss);
      message.mutable_finished()->set_unsaved(CleanText(f.unsaved));
      message.mutable_finished()->set_ended_early(CleanText(f.ended_early));
    }
    void operator()(const DecidedFact& f) {
      for (const DecidedFact::Decision& decision : f.decisions) {
        v1::ResolvedKey& key = *message.mutable_decided()->add_decisions();
        key.set_key(decision.key);
        key.set_value(CleanText(decision.value));
        key.set_reason(CleanText(decision.reason));
      }
    }
    void operator()(const RefusedFact& f) {
      message.mutable_refused()->set_message(CleanText(f.message));
      message.mutable_refused()->set_checkpoint_missing(f.checkpoint_missing);
      message.mutable_refused()->set_later_generation(f.later_generation);
    }
    void operator()(const RestoredFact& f) { FillRestored(f, *message.mutable_restored()); }
    void operator()(const ProbeFact& f) {
      message.mutable_probe()->set_matmul_gflops(f.matmul_gflops);
      message.mutable_probe()->set_all_reduce_latency_s(f.all_reduce_latency_s);
      message.mutable_probe()->set_all_reduce_bytes_per_s(f.all_reduce_bytes_per_s);
    }
  };
  Visitor visitor;
  std::visit(visitor, fact);
  return std::move(visitor.message);
}

v1::MemoryUse ToMessage(const MemoryUse& use) {
  v1::MemoryUse message;
  message.set_kind(use.kind);
  message.set_bytes(use.bytes);
  message.set_peak_bytes(use.peak_bytes);
  return message;
}

v1::StepReport ToMessage(const StepRecord& record) {
  v1::StepReport report;
  report.set_step(record.step);
  report.set_loss(record.loss);
  report.set_tokens(record.tokens);
  report.set_step_s(record.step_s);
  report.set_lr(record.lr);
  report.set_grad_norm(record.grad_norm);
  report.set_compute_s(record.compute_s);
  report.set_exposed_communication_s(record.exposed_communication_s);
  report.set_optimizer_s(record.optimizer_s);
  report.set_skipped(record.skipped);
  report.set_loss_scale(record.loss_scale);
  for (const MemoryUse& use : record.memory) *report.add_memory() = ToMessage(use);
  return report;
}

v1::EvalReport ToMessage(const EvalRecord& record) {
  v1::EvalReport report;
  report.set_step(record.step);
  report.set_loss(record.loss);
  report.set_tokens(record.tokens);
  report.set_seconds(record.seconds);
  return report;
}

v1::CommunicatorReport ToMessage(const CommunicatorProgress& progress) {
  v1::CommunicatorReport report;
  report.set_name(progress.name);
  report.set_started(progress.started);
  report.set_completed(progress.completed);
  report.set_waits_in(progress.waits_in);
  report.set_last_started(progress.last_started);
  return report;
}

void AddPhaseTimes(const std::map<Phase, double>& longest, v1::RankReport& report) {
  for (const auto& [phase, seconds] : longest) {
    v1::PhaseTime& time = *report.add_phase_times();
    time.set_phase(PhaseName(phase));
    time.set_longest_s(seconds);
  }
}

void AddWork(const WorkTotals& work, v1::RankReport& report) {
  report.set_compute_total_s(work.compute_s);
  report.set_wait_total_s(work.wait_s);
  report.set_steps_made(work.steps);
  report.set_micro_batches_made(work.micro_batches);
}

}  // namespace trainyard
