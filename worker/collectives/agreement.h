// Agreement at a step ("reduction A"): one small sum over all ranks a step, by which every rank learns the step's loss
// and acts on requests at the same step as all others. It is started with one step and read in the next, so no step
// waits for it, and a request acts one step after it was put in.
//
//   rank 0:  stop asked (request 4) ──▶ in the sum of step 17 ──▶ read in step 18 ──▶ all leave after step 18
//   any:     SIGTERM ─────────────────▶ notice, the same way
//   any:     its part is written ─────▶ saves_ended; once it is the number of ranks, the save is over for all
//
// Only rank 0 puts requests in, so the sum of their numbers is that number. Pure; belongs to the loop's thread.
#pragma once

#include <array>
#include <cstdint>

namespace trainyard {

// What a rank puts into the sum of a step, and what comes out of it.
struct AgreementTerms {
  double tokens = 0;
  double loss_sum = 0;
  double request = 0;     // rank 0: number of the newest request to stop; others 0
  double notice = 0;      // 1: this rank was told to leave
  double needs_save = 0;  // rank 0: 1 where that request is off if the save before it fails; others 0

  // Of the save under way (save_policy.h): 1 where this rank has ended its part; where that failed.
  double saves_ended = 0;
  double saves_failed = 0;
  // Rank 0; others 0: 1 where it has taken too long, saves that were asked for, and commits that failed so far.
  double give_up = 0;
  double save_request = 0;
  double commits_failed = 0;

  static constexpr int kNumTerms = 10;
  std::array<double, kNumTerms> ToArray() const {
    return {tokens,      loss_sum,     request, notice,       needs_save,
            saves_ended, saves_failed, give_up, save_request, commits_failed};
  }
  static AgreementTerms FromArray(const double* t) {
    return {t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9]};
  }
};

struct AgreedStep {
  double loss = 0;  // mean over the step's tokens, all ranks
  uint64_t tokens = 0;
  bool stop = false;            // leave at the end of the step in which this is read
  bool asked = false;           // by a request, not by a signal
  uint64_t unless_unsaved = 0;  // the number of that request, where nobody is to leave if the save before it fails
};

class Agreement {
 public:
  // `sum` is of all ranks' terms of one step; calls come in the order of the steps. A request number acts once.
  AgreedStep Read(const AgreementTerms& sum);

 private:
  uint64_t last_request_ = 0;
};

}  // namespace trainyard
