#include "common/process_stat.h"

#include "absl/strings/str_split.h"

namespace trainyard {

std::vector<absl::string_view> StatFields(absl::string_view text, size_t last) {
  // The name of the program is in parentheses and may contain anything, even ") R ".
  const size_t end = text.rfind(')');
  if (end == absl::string_view::npos || end + 2 > text.size()) return {};
  std::vector<absl::string_view> fields = absl::StrSplit(text.substr(end + 2), ' ');
  if (fields.size() <= last) fields.clear();
  return fields;
}

}  // namespace trainyard
