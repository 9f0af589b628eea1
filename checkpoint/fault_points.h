// Injects faults at named points of a save, for tests of the state that a crash, a full or a slow disk leaves behind.
// The rules come from the environment variable TRAINYARD_FAULT_POINTS (docs/fault-points.md). Without it,
// no file system is wrapped, and FaultPoint() only tests a pointer.
//
//   rank=1,point=sync:shard:before,nth=2,do=kill;point=append:*:before,do=slow:50ms
//
// Points of the file system are named "<call>:<target>:before" and "<call>:<target>:after"; points between the files of
// a save have a single name. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "checkpoint/file_system.h"

namespace trainyard {

inline constexpr char kFaultPointsVariable[] = "TRAINYARD_FAULT_POINTS";

struct FaultRule {
  enum class Act { kKill, kStop, kNoSpace, kIoError, kReadOnly, kSlow, kWait };
  std::string point;  // a component that is "*" matches any
  Act act = Act::kKill;
  absl::Duration delay = absl::ZeroDuration();  // of kSlow
  std::string file = {};                        // of kWait: waits until this file exists
  std::string once = {};                        // the fault happens only if this file can be created
  std::optional<uint64_t> rank = {};
  std::optional<uint64_t> generation = {};
  std::optional<uint64_t> nth = {};  // only the nth matching point in this process, counted from 1; none: all
};

// Rules are separated by ';' or line ends; "@/path" reads them from that file. Fails with InvalidArgument, which lists
// every problem.
absl::StatusOr<std::vector<FaultRule>> ParseFaultRules(absl::string_view text);

// The effects of rules on the process; tests pass their own.
struct FaultEffects {
  std::function<void()> kill;
  std::function<void()> stop;
  std::function<void(absl::Duration)> sleep;
  static FaultEffects Real();
};

class FaultPoints {
 public:
  // Uses only the rules for this rank and generation.
  FaultPoints(std::vector<FaultRule> rules, uint64_t rank, uint64_t generation, FaultEffects effects);

  // Applies the rules for this point. Fails with ResourceExhausted, Unknown or PermissionDenied if a rule requires it,
  // with a message that contains "cannot <what>"; `what` is, for example, "create /run/step".
  absl::Status Pass(absl::string_view point, absl::string_view what);

 private:
  struct CountedRule {
    FaultRule rule;
    uint64_t passes = 0;  // of matching points
  };
  absl::Status Act(const FaultRule& rule, absl::string_view point, absl::string_view what);

  const FaultEffects effects_;
  absl::Mutex mu_;
  std::vector<CountedRule> rules_ ABSL_GUARDED_BY(mu_);
};

// Wraps `base`, with a point before and after each call. Borrows both.
std::unique_ptr<FileSystem> NewFaultyFileSystem(FileSystem& base, FaultPoints& points);

// Called once in a process, before the first save. `rules` is the value of the environment variable; null: returns
// `base`. The returned file system is never deleted. Fails with the errors of ParseFaultRules.
absl::StatusOr<FileSystem*> InstallFaultPoints(const char* rules, uint64_t rank, uint64_t generation, FileSystem& base);

// Passes a point between files: "snapshot", "ready", "grant" or "commit". Returns OK if no rule matches.
absl::Status FaultPoint(absl::string_view point);

}  // namespace trainyard
