#include "worker/collectives/operation_history.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace trainyard {

std::string OperationHistory::WithoutNumber(absl::string_view name) {
  std::vector<absl::string_view> parts = absl::StrSplit(name, ' ');
  if (parts.size() > 1 && absl::ascii_isdigit(parts[1].empty() ? ' ' : parts[1][0])) parts.erase(parts.begin() + 1);
  return absl::StrJoin(parts, " ");
}

void OperationHistory::Add(absl::string_view name) {
  operations_.push_back(WithoutNumber(name));
  if (operations_.size() > kKept) operations_.pop_front();
}

std::string OperationHistory::NextExpected() const {
  const size_t size = operations_.size();
  size_t longest = 0, successor = 0;
  // Searches from the newest, so that the most recent of equally long sequences counts.
  for (size_t end = size; end-- > 1;) {
    size_t length = 0;
    while (length < end && operations_[end - 1 - length] == operations_[size - 1 - length]) ++length;
    if (length > longest) longest = length, successor = end;
  }
  return longest == 0 ? std::string() : operations_[successor];
}

}  // namespace trainyard
