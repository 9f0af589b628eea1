#include "worker/trainer/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "worker/diagnostics/ledger.h"
#include "worker/numerics/lr_schedule.h"
#include "worker/saving/state.h"
#include "worker/trainer/rank_strategy.h"
#include "worker/trainer/stopwatch.h"

namespace trainyard {
namespace {

// How long the loop waits for metrics, once, if the run folder does not answer.
constexpr absl::Duration kMetricsWait = absl::Seconds(1);

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

EvaluationPolicy::Settings EvaluationSettings(const TrainConfig& config, const RankData& data) {
  return {.patience = config.evaluate_patience,
          .min_delta = config.evaluate_min_delta,
          .keep_best = config.checkpoint_keep_best,
          .steps = config.steps,
          .tokens = data.evaluation == nullptr ? 0 : static_cast<uint64_t>(data.evaluation->num_loss_tokens()),
          .data_hash = data.evaluation_hash};
}

bool ScalesLoss(const TrainConfig& config) {
  return config.precision.param == "fp16" || config.precision.reduce == "fp16";
}

}  // namespace

Trainer::Trainer(const StartOrder& order, Rank& rank, Link& link, FileSystem& file_system, std::ostream& log,
                 std::function<bool()> must_leave, SaveTime time)
    : order_(order),
      config_(order.config),
      rank_(rank),
      link_(link),
      log_(log),
      must_leave_(std::move(must_leave)),
      saver_({.order = order,
              .corpus = rank.inputs.train.corpus,
              .state = rank.strategy->state(),
              .world = rank.world(),
              .link = link,
              .file_system = file_system,
              .log = log,
              .restored_content_hash = rank.restored_content_hash,
              .check_fence = SaveFence(rank.folder, config_.checkpoint_dir, order.job_id, order.generation),
              .ledger = rank.ledger,
              .clock = time.clock,
              .wait = std::move(time.wait),
              .recreate_folder = FolderRecreation(rank.folder)}),
      step_log_(order.config.steps),
      step_(rank.restored_step),
      terms_(at::zeros({AgreementTerms::kNumTerms}, at::kDouble)),
      losses_(rank.device.device),
      evaluations_(EvaluationSettings(order.config, rank.inputs)) {
  if (!rank.restored_evaluation.has_value() || rank.inputs.evaluation == nullptr) return;
  const std::string note = evaluations_.Restore(*rank.restored_evaluation);
  if (!note.empty() && order.rank == 0) log << note << std::endl;
}

absl::StatusOr<TrainResult> Trainer::Run() {
  if (order_.rank == 0) OpenMetrics();
  // The peaks of memory use so far belong to the start and not to training.
  if (rank_.ledger != nullptr) rank_.ledger->ResetPeaks();
  RETURN_IF_ERROR(saver_.Prepare());
  std::string ended_early = evaluations_.EndReason();  // not empty: this job had ended, and was restarted
  while (step_ < config_.steps && !leave_ && ended_early.empty()) {
    ++step_;
    RETURN_IF_ERROR(MakeStep());
    if (IsDue(config_.hash_every_steps)) {
      RETURN_IF_ERROR(CompareParameters());
    }

    bool last = step_ == config_.steps, due = IsDue(config_.checkpoint_every);
    const bool evaluate = rank_.inputs.evaluation != nullptr && (last || IsDue(config_.evaluate_every));
    // The step must be reported before an evaluation, the end, and a save that is waited for: its checkpoint may be
    // complete, and another generation may resume from it, before this one makes the next step.
    if (evaluate || last || leave_ || saver_.MakesWaitedSave(step_, due)) {
      RETURN_IF_ERROR(ReadAgreement());
    }
    if (evaluate) {
      RETURN_IF_ERROR(Evaluate());
      if (!last) ended_early = evaluations_.EndReason();
      last = last || !ended_early.empty();
      due = due || evaluations_.MustSave();
    }
    const bool waits = last || leave_ || saver_.MakesWaitedSave(step_, due);
    if (waits) {
      RETURN_IF_ERROR(AwaitMetrics());
    }
    if (last || leave_) {
      RETURN_IF_ERROR(SaveAndLeave(last));
    } else {
      RETURN_IF_ERROR(saver_.AtBoundary(step_, Position(), due));
    }
    RETURN_IF_ERROR(waits ? AwaitMetrics() : CheckFence());
    saver_.Maintain();
  }
  // If the last save failed, only the snapshots hold the state since the last good save, so they are kept.
  if (!unsaved_) saver_.DropSnapshots();
  if (step_ == config_.steps) ended_early.clear();
  return TrainResult{.step = step_,
                     .stopped = step_ < config_.steps && ended_early.empty(),
                     .loss = last_loss_,
                     .unsaved = std::move(why_unsaved_),
                     .lacks_save = unsaved_,
                     .ended_early = std::move(ended_early)};
}

void Trainer::OpenMetrics() {
  auto opened = MetricsFile::Open(JoinPath(config_.checkpoint_dir, kMetricsName), rank_.restored_step);
  MetricsFile::StepsOfEpoch earlier{.is_whole = rank_.restored_step == 0};
  std::unique_ptr<MetricsFile> file;
  if (opened.ok()) {
    file = std::move(*opened);
    if (rank_.restored_step > 0) earlier = file->ReadStepsOfEpoch(EpochsAfter(rank_.restored_step));
  } else {
    log_ << "warning: no metrics are written: " << opened.status().message() << std::endl;
  }
  metrics_ = std::make_unique<MetricsThread>(std::move(file), StepFence(rank_.folder));
  epoch_log_ = std::make_unique<EpochLog>(rank_.inputs.training->num_samples(), rank_.restored_samples, earlier.steps,
                                          earlier.is_whole);
}

absl::Status Trainer::MakeStep() {
  EnterStep();
  const Stopwatch whole;
  StepRecord record{.step = step_, .lr = LearningRateAt(LrScheduleOf(config_), step_), .epoch = EpochsAfter(step_)};
  AgreementTerms terms;
  const double waited_before_s = rank_.waited_for_model_s(), waited_for_data_before_s = rank_.strategy->waited_s();
  RETURN_IF_ERROR(Compute());
  // The time for which a rank waits for other ranks says nothing about its own speed: for other stages and tensor
  // ranks, and for data ranks, whose shards of the parameters are gathered during the passes.
  const double waited_s = rank_.waited_for_model_s() - waited_before_s;
  const double waited_for_data_s = rank_.strategy->waited_s() - waited_for_data_before_s;
  record.compute_s = std::max(0.0, whole.seconds() - waited_s - waited_for_data_s);
  work_.wait_s += waited_s + waited_for_data_s;
  terms.model_wait_s = waited_s;
  const Stopwatch reduce;
  RETURN_IF_ERROR(rank_.strategy->FinishBackward());
  work_.wait_s += reduce.seconds();

  RETURN_IF_ERROR(ReadAgreement());  // of the step before
  if (order_.rank == 0) {
    const StopRequest stop = link_.stop_request();
    terms.request = static_cast<double>(stop.number);
    terms.needs_save = stop.needs_save ? 1 : 0;
  }
  terms.notice = must_leave_() ? 1 : 0;
  saver_.AddTerms(terms);
  // On a GPU, the host ran all of the above while the GPU was computing. The time of the GPU contains its waits for
  // other data ranks, which the host does not see.
  if (const auto device_s = AwaitLosses(terms); device_s.has_value())
    record.compute_s = std::max(0.0, *device_s - waited_s - rank_.stream_waits->Seconds());
  StartAgreement(terms);

  saver_.WaitForCopy();
  record.save_stall_s = saver_.TakeStallSeconds();
  RecordMemory(record);  // now, while gradients are allocated too
  const Stopwatch update;
  ASSIGN_OR_RETURN(StepOutput output, rank_.strategy->Step({.lr = record.lr, .num_tokens = LossTokensOfStep()}));
  record.optimizer_s = update.seconds();
  record.skipped = output.skipped;
  if (ScalesLoss(config_)) record.loss_scale = output.loss_scale;
  record.exposed_communication_s = output.exposed_comm_s;
  record.gradient_reductions = output.num_reductions;
  record.grad_norm = output.gradient_norm;
  record.step_s = whole.seconds();
  work_.compute_s += record.compute_s;
  work_.micro_batches += rank_.deal.micro_batches.size();
  work_.steps++;
  link_.ReportWork(work_);
  record_ = record;
  return HandleSkippedStep(output);
}

// All ranks count identically, so all of them reach the limit in the same step.
absl::Status Trainer::HandleSkippedStep(const StepOutput& output) {
  if (!output.skipped) {
    num_skipped_ = 0;
    return absl::OkStatus();
  }
  // Skipped steps that lower the loss scale are normal, because the scale was too high. They are not counted, nor are
  // those before them that the hysteresis absorbs, because no lower scale has been tried yet.
  const LossScale scale = rank_.strategy->state().loss_scale();
  const bool absorbed = ScalesLoss(config_) && !config_.loss_scale.is_static && scale.hysteresis_left > 0;
  const bool is_counted = !absorbed && scale.scale >= output.loss_scale;
  if (is_counted) ++num_skipped_;
  if (order_.rank == 0) {
    log_ << "warning: step " << step_ << ": a loss or gradient is not finite; every rank skips the update" << std::endl;
  }
  if (!is_counted || num_skipped_ < config_.nonfinite_limit) return absl::OkStatus();
  const std::string what = absl::StrCat("train.nonfinite_limit: ", num_skipped_,
                                        " steps in a row, the last of them step ", step_, ", had no update: ");
  // Each rank with a loss that is not finite reports it as the cause. If no rank has one, the gradients are the cause,
  // and rank 0 reports this. All other ranks end with Aborted.
  at::Tensor bad = at::full({1}, bad_micro_batch_.has_value() ? 1.0 : 0.0, at::kDouble);
  RETURN_IF_ERROR(rank_.world().AllReduceSum(bad)->Wait());
  if (bad_micro_batch_.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(what, "the loss of micro-batch ", *bad_micro_batch_, " on rank ",
                                                      order_.rank,
                                                      " is not finite; a smaller lr or another "
                                                      "precision may help"));
  }
  if (order_.rank == 0 && bad.item<double>() == 0) {
    const char* advice = ScalesLoss(config_) && config_.loss_scale.is_static
                             ? "a smaller lr, another precision or a smaller train.loss_scale.initial may help"
                             : "a smaller lr or another precision may help";
    return absl::FailedPreconditionError(absl::StrCat(what, "losses are finite, gradients are not; ", advice));
  }
  return absl::AbortedError(absl::StrCat(what, "another rank reports the cause"));
}

// Called before anything of this step is saved.
absl::Status Trainer::CompareParameters() {
  ASSIGN_OR_RETURN(std::optional<ParameterDifference> difference, rank_.strategy->state().CompareParameters());
  if (!difference.has_value()) return absl::OkStatus();
  const bool is_one = difference->ranks.size() == 1;
  const std::string ranks = absl::StrCat(is_one ? "rank " : "ranks ", absl::StrJoin(difference->ranks, ", "));
  return absl::FailedPreconditionError(absl::StrCat(
      "diagnostics.hash_every_steps: after step ", step_, " parameter ", difference->name, " differs on ", ranks,
      " from that on ",
      order_.world_size - static_cast<int>(difference->ranks.size()) == 1 ? "the other rank" : "the other ranks",
      "; the memory or device of the ", is_one ? "host of " : "hosts of ", ranks, " may be at fault: exclude ",
      is_one ? "that host" : "those hosts", ", then resume from the last checkpoint"));
}

void Trainer::EnterStep() {
  if (rank_.events != nullptr) rank_.events->set_step(step_);
  link_.ReportProgress(step_ == rank_.restored_step + 1 ? Phase::kFirstStep : Phase::kTrain, step_ - 1);
}

absl::Status Trainer::Compute() {
  const uint64_t position = ConsumedSamples(step_ - 1);
  rank_.strategy->BeginStep(LossTokensOfStep());
  bad_micro_batch_.reset();
  loss_tokens_.clear();
  const PipelineWork work{.micro_batches = rank_.deal.micro_batches, .num_rounds = rank_.deal.num_rounds};
  // Empty rounds are the last ones, and a GPU only waits for other ranks in them. So the computing time ends after the
  // last micro-batch: the last call of EndComputing counts, and the one below is for a rank without micro-batches.
  const bool has_empty_rounds = rank_.executor->NumEmptyRounds(work) > 0;
  losses_.Begin();
  rank_.stream_waits->Begin();
  if (has_empty_rounds) EndComputing();
  const auto batch_of = [&](int64_t index) {
    const uint64_t first_sample = static_cast<uint64_t>(index * config_.batch_micro);  // of the step
    Batch batch = OnDevice(rank_.inputs.training->At(position + first_sample, config_.batch_micro));
    loss_tokens_[index] = batch.loss_tokens;
    MicroBatch micro_batch{
        .inputs = std::move(batch.inputs), .targets = std::move(batch.targets), .starts = std::move(batch.starts)};
    if (config_.model.dropout > 0 || config_.model.lora.dropout > 0) {
      micro_batch.dropout = DropoutKey{.seed = config_.seed, .step = step_, .first_sample = first_sample};
    }
    return micro_batch;
  };
  // On a CPU, every rank skips the update if a loss is not finite; RejectStep must be called before the last backward.
  // On a GPU, the loss is not known by then, but if it is not finite, neither are the gradients, with the same effect.
  const auto on_loss = [&](int64_t index, const at::Tensor& loss) {
    const std::optional<double> value = losses_.Add(index, loss);
    if (value.has_value() && !std::isfinite(*value)) rank_.strategy->RejectStep();
    if (has_empty_rounds) EndComputing();
  };
  RETURN_IF_ERROR(rank_.executor->RunStep(work, batch_of, on_loss));
  if (!has_empty_rounds) EndComputing();
  return absl::OkStatus();
}

void Trainer::EndComputing() {
  losses_.End();
  rank_.stream_waits->End();
}

std::optional<double> Trainer::AwaitLosses(AgreementTerms& terms) {
  for (const auto& [micro_batch, loss] : losses_.Await()) {
    if (!std::isfinite(loss) && !bad_micro_batch_.has_value()) bad_micro_batch_ = micro_batch;
    if (!rank_.reports_losses) continue;
    terms.loss_sum += loss;
    terms.tokens += static_cast<double>(loss_tokens_[micro_batch]);
  }
  return losses_.device_seconds();
}

Batch Trainer::OnDevice(Batch batch) const {
  const at::Device device = rank_.device.device;
  if (device.is_cpu()) return batch;
  // Copies from pinned memory, so that the host continues while the device copies.
  const auto to_device = [device](const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return tensor.pin_memory().to(device, /*non_blocking=*/true);
  };
  return {.inputs = to_device(batch.inputs),
          .targets = to_device(batch.targets),
          .starts = to_device(batch.starts),
          .loss_tokens = batch.loss_tokens};
}

void Trainer::StartAgreement(const AgreementTerms& terms) {
  const auto values = terms.ToArray();
  std::copy(values.begin(), values.end(), terms_.mutable_data_ptr<double>());
  reduction_ = rank_.world().AllReduceSum(terms_);
}

// Reports the step that the sums belong to, and sets `leave_` when all ranks must leave.
absl::Status Trainer::ReadAgreement() {
  if (reduction_ == nullptr) return absl::OkStatus();
  const Stopwatch wait;
  RETURN_IF_ERROR(reduction_->Wait());
  work_.wait_s += wait.seconds();
  reduction_ = nullptr;
  const AgreementTerms sum = AgreementTerms::FromArray(terms_.const_data_ptr<double>());
  AgreedStep agreed = agreement_.Read(sum);
  // The saver may commit a checkpoint of an earlier step now, and its line must be written before. It usually is.
  if (order_.rank == 0 && saver_.IsSaving()) metrics_->Await(kMetricsWait);
  saver_.Update(step_, record_.step, sum);
  if (agreed.stop && !leave_ && order_.rank == 0) {
    log_ << (agreed.is_requested ? "stop requested" : "a rank must leave (SIGTERM)") << ": all ranks leave after step "
         << step_ << std::endl;
  }
  if (agreed.stop) stop_needing_save_ = agreed.request_needing_save;
  leave_ = leave_ || agreed.stop;
  last_loss_ = agreed.loss;
  if (order_.rank != 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFence());
  record_.loss = agreed.loss;
  record_.tokens = agreed.tokens;
  record_.model_wait_s = sum.model_wait_s / order_.world_size;
  link_.ReportStep(record_);
  Write(MetricsLine(record_));
  if (std::string line = step_log_.Line(record_, SteadySeconds()); !line.empty()) log_ << line << std::endl;
  const EpochStep step{.step = record_.step, .loss = record_.loss, .tokens = record_.tokens};
  const std::string epoch = epoch_log_->Line(step, ConsumedSamples(record_.step));
  if (!epoch.empty()) log_ << epoch << std::endl;
  return absl::OkStatus();
}

// Evaluates the same batches each time, dealt to the ranks, and draws no random numbers.
absl::Status Trainer::Evaluate() {
  link_.ReportProgress(Phase::kEvaluate, step_);
  const Stopwatch watch;
  at::NoGradGuard no_grad;
  // The losses are added up in the order of the batches, so that the sum does not depend on how they are dealt.
  at::Tensor losses = at::zeros({rank_.inputs.evaluation->num_batches()}, at::kDouble);
  const Deal& deal = rank_.evaluation_deal;
  const auto batch_of = [&](int64_t index) {
    Batch batch = OnDevice(rank_.inputs.evaluation->At(index));
    return MicroBatch{
        .inputs = std::move(batch.inputs), .targets = std::move(batch.targets), .starts = std::move(batch.starts)};
  };
  const auto on_loss = [&](int64_t index, const at::Tensor& loss) {
    if (rank_.reports_losses) losses.mutable_data_ptr<double>()[index] = loss.item<double>();
  };
  RETURN_IF_ERROR(rank_.executor->Evaluate({.micro_batches = deal.micro_batches, .num_rounds = deal.num_rounds},
                                           batch_of, on_loss));
  RETURN_IF_ERROR(rank_.world().AllReduceSum(losses)->Wait());
  const double* values = losses.const_data_ptr<double>();
  EvalRecord record{.step = step_, .tokens = static_cast<uint64_t>(rank_.inputs.evaluation->num_loss_tokens())};
  record.loss = std::accumulate(values, values + losses.numel(), 0.0) / static_cast<double>(record.tokens);
  evaluations_.NoteSaves(saver_.newest_written(), saver_.failed_commits());
  evaluations_.Observe(step_, record.loss, /*counts=*/IsDue(config_.evaluate_every));
  if (order_.rank != 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFence());
  record.seconds = watch.seconds();
  link_.ReportEval(record);
  Write(MetricsLine(record));
  return absl::OkStatus();
}

// All ranks wait for the save, and then leave. If the save fails, a stop that needs it is cancelled, and training
// continues.
absl::Status Trainer::SaveAndLeave(bool last) {
  if (last) return SaveLast();
  link_.ReportProgress(Phase::kSave, step_);
  const uint64_t stop = stop_needing_save_;
  ASSIGN_OR_RETURN(const bool saved, saver_.SaveAndWait(step_, Position(), stop));
  leave_ = stop == 0 || saved;
  unsaved_ = !saved;
  if (!leave_) {
    last_cancelled_stop_ = stop;
    if (order_.rank == 0)
      log_ << "the stop after step " << step_ << " is cancelled: the step was not saved" << std::endl;
    return absl::OkStatus();
  }
  link_.ReportProgress(Phase::kLeaving, step_);
  saver_.Finish(must_leave_);
  return absl::OkStatus();
}

// No rank leaves before the checkpoint is named, because only then has the job succeeded. Exceptions: the host asks a
// rank to leave, and the retries of the save are given up.
absl::Status Trainer::SaveLast() {
  const auto new_stop = [this] {
    const StopRequest stop = link_.stop_request();
    return stop.number > last_cancelled_stop_ ? stop : StopRequest();
  };
  ASSIGN_OR_RETURN(Saver::LastSave last,
                   saver_.SaveLast(step_, Position(),
                                   {.enter = [this](Phase phase) { link_.ReportProgress(phase, step_); },
                                    .leaves = must_leave_,
                                    .new_stop = new_stop}));
  unsaved_ = !last.saved;
  why_unsaved_ = std::move(last.unsaved);
  return absl::OkStatus();
}

RunPosition Trainer::Position() const {
  RunPosition position{.consumed_samples = ConsumedSamples(step_),
                       .samples_per_epoch = rank_.inputs.training->num_samples(),
                       .samples = rank_.inputs.recorded_samples};
  if (rank_.inputs.evaluation != nullptr) position.evaluation = evaluations_.StateAt(step_);
  return position;
}

double Trainer::EpochsAfter(uint64_t step) const {
  const uint64_t samples = rank_.inputs.training->num_samples();
  return samples == 0 ? 0 : static_cast<double>(ConsumedSamples(step)) / static_cast<double>(samples);
}

uint64_t Trainer::LossTokensOfStep() const {
  return rank_.inputs.training->LossTokens(ConsumedSamples(step_ - 1), config_.batch_global);
}

uint64_t Trainer::ConsumedSamples(uint64_t step) const {
  return rank_.restored_samples + (step - rank_.restored_step) * static_cast<uint64_t>(config_.batch_global);
}

absl::Status Trainer::CheckFence() const { return metrics_ == nullptr ? absl::OkStatus() : metrics_->fence(); }

absl::Status Trainer::AwaitMetrics() {
  if (metrics_ != nullptr) {
    metrics_->Check();
    metrics_->Await(kMetricsWait);
    LogMetricsWarning();
  }
  return CheckFence();
}

// A step's record contains the memory only if it differs from the last report, which is rare.
void Trainer::RecordMemory(StepRecord& record) {
  if (rank_.ledger == nullptr) return;
  std::vector<MemoryUse> memory;
  for (const KindUse& use : UseOf(*rank_.ledger, rank_.device)) {
    memory.push_back({.kind = MemoryKindName(use.kind),
                      .bytes = static_cast<uint64_t>(std::max<int64_t>(use.bytes, 0)),
                      .peak_bytes = static_cast<uint64_t>(std::max<int64_t>(use.peak_bytes, 0))});
  }
  if (memory == memory_) return;
  memory_ = record.memory = std::move(memory);
  link_.ReportMemory(memory_);
}

// A failure to write metrics causes a warning and does not fail the job.
void Trainer::Write(absl::string_view metrics_line) {
  metrics_->Write(metrics_line);
  LogMetricsWarning();
}

void Trainer::LogMetricsWarning() {
  if (const std::string warning = metrics_->TakeWarning(); !warning.empty()) log_ << warning << std::endl;
}

}  // namespace trainyard
