// Prints the learning rates of schedules, for tests/interop/schedules_test.py: a line of standard input names a
// schedule, a line of standard output has its rates.
//
//   kind formula steps warmup min_ratio decay_steps decay timescale
//   linear transformers 10 3 0 4 cosine 3
#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "worker/numerics/lr_schedule.h"

int main() {
  using trainyard::LrSchedule;
  const std::map<std::string, LrSchedule::Kind> kinds = {{"cosine", LrSchedule::Kind::kCosine},
                                                         {"linear", LrSchedule::Kind::kLinear},
                                                         {"constant", LrSchedule::Kind::kConstant},
                                                         {"inverse_sqrt", LrSchedule::Kind::kInverseSqrt},
                                                         {"wsd", LrSchedule::Kind::kWsd}};
  const std::map<std::string, LrSchedule::Decay> decays = {{"cosine", LrSchedule::Decay::kCosine},
                                                           {"linear", LrSchedule::Decay::kLinear},
                                                           {"sqrt", LrSchedule::Decay::kSqrt}};
  std::string kind, formula, decay;
  LrSchedule schedule{.peak = 1};
  std::cout.precision(17);
  while (std::cin >> kind >> formula >> schedule.total_steps >> schedule.warmup_steps >> schedule.min_ratio >>
         schedule.decay_steps >> decay >> schedule.timescale) {
    schedule.kind = kinds.at(kind);
    schedule.decay = decays.at(decay);
    schedule.zero_based = formula == "transformers";
    for (uint64_t step = 1; step <= schedule.total_steps; ++step) {
      std::cout << (step == 1 ? "" : " ") << trainyard::LearningRateAt(schedule, step);
    }
    std::cout << "\n";
  }
  return 0;
}
