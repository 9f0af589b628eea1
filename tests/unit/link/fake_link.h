// A fake of the link from a trainer to its daemon (worker/link/link.h), without a daemon. It records what is reported
// to it, and unless a test requests otherwise, it acknowledges facts and lets the rank begin immediately. Ranks in
// threads of one test share a FakeStore.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/link/link.h"

namespace trainyard {

class FakeStore {
 public:
  absl::Status Put(absl::string_view name, absl::string_view value) {
    absl::MutexLock lock(&mu_);
    auto [it, fresh] = values_.emplace(name, value);
    return fresh || it->second == value ? absl::OkStatus() : absl::AlreadyExistsError(name);
  }
  absl::StatusOr<std::string> Get(const std::string& name, absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    auto is_known = [&]() { return values_.contains(name); };
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_known), timeout)) return absl::DeadlineExceededError(name);
    return values_.at(name);
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, std::string> values_;
};

class FakeLink final : public Link {
 public:
  explicit FakeLink(FakeStore* store = nullptr) : store_(store) {}

  absl::StatusOr<StartOrder> AwaitStart(absl::Duration) override {
    return absl::UnimplementedError("a fake link has no start order");
  }
  uint64_t ReportFact(const TrainerFact& fact) override {
    absl::MutexLock lock(&mu_);
    facts_.push_back(fact);
    return facts_.size();
  }
  uint64_t acknowledged() const override {
    absl::MutexLock lock(&mu_);
    return acknowledges_ ? facts_.size() : 0;
  }
  bool AwaitAcknowledged(uint64_t, absl::Duration) override {
    if (++waits_ > acknowledges_after_waits_) acknowledges_ = acknowledges_ || acknowledges_after_waits_ > 0;
    return acknowledges_;
  }
  void ReportStep(const StepRecord& record) override {
    absl::MutexLock lock(&mu_);
    steps_.push_back(record);
    if (record.step == stop_after_report_of_) stop_request_ = {.number = 1, .needs_save = stop_needs_save_};
    if (record.step == save_after_report_of_) ++save_requests_;
    if (record.step == stop_again_after_report_of_) stop_request_ = {.number = 2, .needs_save = false};
  }
  void ReportEval(const EvalRecord& record) override {
    absl::MutexLock lock(&mu_);
    evals_.push_back(record);
  }
  void ReportProgress(Phase phase, uint64_t) override {
    absl::MutexLock lock(&mu_);
    phases_.push_back(phase);
  }
  void ReportWork(const WorkTotals& totals) override {
    absl::MutexLock lock(&mu_);
    work_ = totals;
  }
  void ReportMemory(const std::vector<MemoryUse>& memory) override {
    absl::MutexLock lock(&mu_);
    memory_ = memory;
  }
  void PollCommunicators(std::function<std::vector<CommunicatorProgress>()> poll) override {
    absl::MutexLock lock(&mu_);
    poll_ = std::move(poll);
  }
  absl::Status AwaitGo(const std::function<bool()>&) override { return go_status_; }
  StopRequest stop_request() const override {
    absl::MutexLock lock(&mu_);
    return stop_request_;
  }
  absl::Status AwaitGrant(uint64_t step, absl::string_view manifest_hash, absl::Duration limit) override {
    {
      absl::MutexLock lock(&mu_);
      requested_grants_.push_back(step);
    }
    return answer_grant_(step, manifest_hash, limit);
  }
  uint64_t save_requests() const override {
    absl::MutexLock lock(&mu_);
    return save_requests_;
  }
  void OnAbort(std::function<void(std::string)>) override {}
  absl::Status abort_status() const override { return absl::OkStatus(); }
  void Close(absl::Duration) override {}
  absl::Status Put(absl::string_view name, absl::string_view value) override { return store_->Put(name, value); }
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) override {
    {
      absl::MutexLock lock(&mu_);
      get_timeouts_.push_back(timeout);
    }
    return store_->Get(std::string(name), timeout);
  }

  // Call before the run.
  void set_acknowledges(bool acknowledges) { acknowledges_ = acknowledges; }
  void AcknowledgeAfterWaits(int waits) {
    acknowledges_ = false;
    acknowledges_after_waits_ = waits;
  }
  void set_go_status(absl::Status status) { go_status_ = std::move(status); }
  void StopAfterReportOf(uint64_t step, bool needs_save = false) {
    stop_after_report_of_ = step;
    stop_needs_save_ = needs_save;
  }
  // Requests a second stop, whether or not the first one succeeded.
  void StopAgainAfterReportOf(uint64_t step) { stop_again_after_report_of_ = step; }

  // Requests a save after this step was reported.
  void SaveAfterReportOf(uint64_t step) { save_after_report_of_ = step; }
  // Answers requests for a grant; by default each is granted immediately. Called on the thread that requests the grant,
  // which it may block for up to `limit`.
  using AnswerGrant = std::function<absl::Status(uint64_t step, absl::string_view manifest_hash, absl::Duration limit)>;
  void set_answer_grant(AnswerGrant answer) { answer_grant_ = std::move(answer); }

  // Call after the run.
  std::vector<uint64_t> requested_grants() const {
    absl::MutexLock lock(&mu_);
    return requested_grants_;
  }
  int waits() const { return waits_; }
  const std::vector<StepRecord>& steps() const { return steps_; }
  const std::vector<EvalRecord>& evals() const { return evals_; }
  const std::vector<TrainerFact>& facts() const { return facts_; }
  const std::vector<Phase>& phases() const { return phases_; }
  const std::vector<absl::Duration>& get_timeouts() const { return get_timeouts_; }  // of each Get, in order
  const WorkTotals& work() const { return work_; }
  const std::vector<MemoryUse>& memory() const { return memory_; }
  const std::function<std::vector<CommunicatorProgress>()>& poll() const { return poll_; }
  template <typename F>
  std::vector<F> FactsOf() const {
    std::vector<F> found;
    for (const TrainerFact& fact : facts_) {
      if (const F* f = std::get_if<F>(&fact)) found.push_back(*f);
    }
    return found;
  }

 private:
  FakeStore* const store_;
  bool acknowledges_ = true;
  int acknowledges_after_waits_ = 0;
  int waits_ = 0;
  absl::Status go_status_;
  uint64_t stop_after_report_of_ = 0;
  uint64_t stop_again_after_report_of_ = 0;
  bool stop_needs_save_ = false;
  uint64_t save_after_report_of_ = 0;
  AnswerGrant answer_grant_ = [](uint64_t, absl::string_view, absl::Duration) { return absl::OkStatus(); };
  mutable absl::Mutex mu_;
  uint64_t save_requests_ = 0;
  std::vector<uint64_t> requested_grants_;
  std::vector<TrainerFact> facts_;
  std::vector<StepRecord> steps_;
  std::vector<EvalRecord> evals_;
  std::vector<Phase> phases_;
  std::vector<absl::Duration> get_timeouts_;
  WorkTotals work_;
  std::vector<MemoryUse> memory_;
  std::function<std::vector<CommunicatorProgress>()> poll_;
  StopRequest stop_request_;
};

}  // namespace trainyard
