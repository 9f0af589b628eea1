// Agreement at a step ("reduction A"): one small sum over all ranks a step, by which every rank learns the step's loss
// and acts on requests at the same step as all others. It is started with one step and read in the next, so no step
// waits for it, and a request acts one step after it was put in.
//
//   rank 0:  stop asked (request 4) ──▶ in the sum of step 17 ──▶ read in step 18 ──▶ all leave after step 18
//   any:     SIGTERM ─────────────────▶ notice, the same way
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

  static constexpr int kNumTerms = 5;
  std::array<double, kNumTerms> ToArray() const { return {tokens, loss_sum, request, notice, needs_save}; }
  static AgreementTerms FromArray(const double* terms) { return {terms[0], terms[1], terms[2], terms[3], terms[4]}; }
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
