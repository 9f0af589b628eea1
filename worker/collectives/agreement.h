// Agreement at a step ("reduction A"): one small sum over all ranks per step, through which every rank learns the
// step's loss and acts on requests at the same step as all other ranks. The sum is started in one step and read in the
// next, so no step waits for it, and a request takes effect one step after it was submitted.
//
//   rank 0:    stop requested (request 4) ──▶ in the sum of step 17 ──▶ read in step 18 ──▶ all leave after step 18
//   any rank:  SIGTERM ─────────────────────▶ notice, handled the same way
//   any rank:  its part is written ─────────▶ saves_ended; when it equals the number of ranks, the save is over
//
// Only rank 0 submits requests, so the sum of the request numbers is rank 0's number. Pure; used only by the loop's
// thread.
#pragma once

#include <array>
#include <cstdint>

namespace trainyard {

// The values that a rank contributes to the sum of a step, and the values that it reads from the sum.
struct AgreementTerms {
  double tokens = 0;
  double loss_sum = 0;
  double request = 0;     // rank 0: number of the newest stop request; other ranks: 0
  double notice = 0;      // 1: this rank was asked to leave (SIGTERM)
  double needs_save = 0;  // rank 0: 1 if a failed save cancels the stop request; other ranks: 0

  // For the save in progress (save_policy.h).
  double saves_ended = 0;   // 1 if this rank has finished its part
  double saves_failed = 0;  // 1 if that part failed
  // Values of rank 0; other ranks: 0.
  double give_up = 0;         // 1 if the save has taken too long
  double save_request = 0;    // the number of the newest request to save
  double commits_failed = 0;  // the number of failed commits

  double model_wait_s = 0;  // the time for which this rank waited for ranks with other parts of the model

  static constexpr int kNumTerms = 11;
  std::array<double, kNumTerms> ToArray() const {
    return {tokens,       loss_sum, request,      notice,         needs_save,  saves_ended,
            saves_failed, give_up,  save_request, commits_failed, model_wait_s};
  }
  static AgreementTerms FromArray(const double* t) {
    return {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10]};
  }
};

struct AgreedStep {
  double loss = 0;  // mean over the step's tokens on all ranks
  uint64_t tokens = 0;
  bool stop = false;                  // leave at the end of the step in which this is read
  bool is_requested = false;          // the stop comes from a request, not from a signal
  uint64_t request_needing_save = 0;  // the number of that request if a failed save cancels it; otherwise 0
};

class Agreement {
 public:
  // `sum` is the sum of all ranks' terms of one step. Calls must come in step order. Each request number acts once.
  AgreedStep Read(const AgreementTerms& sum);

 private:
  uint64_t last_request_ = 0;
};

}  // namespace trainyard
