// What the ranks of a communicator took part in so far, and so what is due: training repeats itself, and after the same
// operations the same one follows. Tells which of two ranks that disagree went astray. Pure; for one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

class OperationHistory {
 public:
  // `name` as of OperationLog, "all-reduce 17 (4 x fp64)"; kept is what does not change from step to step, without the
  // number.
  void Add(absl::string_view name);

  // "all-reduce (4 x fp64)": what followed the last time after the longest stretch of operations that ends as those so
  // far do. Empty: there was none like it.
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
