// Records the recent operations of a communicator and predicts the next one: training is periodic, so the same
// operation follows the same sequence. When two ranks run different operations, the prediction shows which of the two
// ranks deviated. Pure; single-threaded.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

class OperationHistory {
 public:
  // `name` as returned by OperationLog::Start, "all-reduce 17 (4 x fp64)". The number is dropped, because it changes
  // from step to step.
  void Add(absl::string_view name);

  // The expected next operation, "all-reduce (4 x fp64)": finds the longest earlier sequence that equals the most
  // recent operations, and returns the operation that followed it. Empty if there is none.
  std::string NextExpected() const;
  bool IsExpected(absl::string_view name) const {
    return !operations_.empty() && WithoutNumber(name) == NextExpected();
  }

 private:
  static constexpr size_t kKept = 512;

  static std::string WithoutNumber(absl::string_view name);

  std::deque<std::string> operations_;  // the newest last
};

}  // namespace trainyard
