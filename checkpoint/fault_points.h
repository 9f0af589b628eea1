// Faults at named points of a save, for tests of what a crash, a full or a slow disk leaves behind. The rules come from
// the environment variable TRAINYARD_FAULT_POINTS (docs/fault-points.md); without it nothing is wrapped and
// FaultPoint() is one look at a pointer.
//
//   rank=1,point=sync:shard:before,nth=2,do=kill;point=append:*:before,do=slow:50ms
//
// Points of the file system are "<call>:<what>:before" and "...:after"; FaultPoints knows the words. Those a saver has
// between its files are single words. Thread-safe.
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
  std::string point;  // a part that is "*" stands for any
  Act act = Act::kKill;
  absl::Duration delay = absl::ZeroDuration();  // of kSlow
  std::string file = {};                        // of kWait: goes on once it exists
  std::string once = {};                        // acts only where it can make this file
  std::optional<uint64_t> rank = {};
  std::optional<uint64_t> generation = {};
  std::optional<uint64_t> nth = {};  // of the passes through such points in this process; none: each
};

// Rules are parted by ';' or line ends; "@/path" stands for what that file holds. Possible errors: InvalidArgument with
// everything that is wrong.
absl::StatusOr<std::vector<FaultRule>> ParseFaultRules(absl::string_view text);

// What a rule does to its process; a test hands in others.
struct FaultEffects {
  std::function<void()> kill;
  std::function<void()> stop;
  std::function<void(absl::Duration)> sleep;
  static FaultEffects Real();
};

class FaultPoints {
 public:
  // Keeps the rules that are about this rank and generation.
  FaultPoints(std::vector<FaultRule> rules, uint64_t rank, uint64_t generation, FaultEffects effects);

  // Does what the rules say for this point. Possible errors: ResourceExhausted, Unknown and PermissionDenied of
  // the rules that say so, as if the kernel had refused `what`.
  absl::Status Pass(absl::string_view point, absl::string_view what);

 private:
  struct Counted {
    FaultRule rule;
    uint64_t passes = 0;
  };
  absl::Status Act(const FaultRule& rule, absl::string_view point, absl::string_view what);

  const FaultEffects effects_;
  absl::Mutex mu_;
  std::vector<Counted> rules_ ABSL_GUARDED_BY(mu_);
};

// `base` with a point before and after each call. Borrows both.
std::unique_ptr<FileSystem> NewFaultyFileSystem(FileSystem& base, FaultPoints& points);

// Once in a process, before the first save. `rules`: of the environment; null: returns `base` and nothing changes. Else
// what is returned is never deleted. Possible errors: those of ParseFaultRules.
absl::StatusOr<FileSystem*> InstallFaultPoints(const char* rules, uint64_t rank, uint64_t generation, FileSystem& base);

// A point between files: "snapshot", "ready", "grant" or "commit". OK where no rule is about it.
absl::Status FaultPoint(absl::string_view point);

}  // namespace trainyard
