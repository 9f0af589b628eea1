#include "worker/link/link.h"

namespace trainyard {

const char* PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "starting";
    case Phase::kJoining:
      return "joining";
    case Phase::kReady:
      return "ready";
    case Phase::kFirstStep:
      return "first_step";
    case Phase::kTrain:
      return "train";
    case Phase::kEvaluate:
      return "evaluate";
    case Phase::kSave:
      return "save";
    case Phase::kLeaving:
      return "leaving";
    case Phase::kEnded:
      return "ended";
  }
  return "";
}

}  // namespace trainyard
