// Counts and shortened lists in sentences. Header-only. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// "1 host", "2 hosts".
inline std::string Plural(uint64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// "1 rank waits", "2 ranks wait": for plurals that do more than add an s.
inline std::string Plural(uint64_t count, absl::string_view one, absl::string_view many) {
  return absl::StrCat(count, " ", count == 1 ? one : many);
}

// The end of a list that shows `shown` of `total` entries: "<separator>and 3 more", or "<separator>and 1 more problem"
// if there is a noun. Empty if the list shows all entries.
inline std::string AndMore(size_t shown, size_t total, absl::string_view separator = " ", absl::string_view noun = "") {
  if (total <= shown) return "";
  const size_t more = total - shown;
  return absl::StrCat(separator, "and ", more, " more", noun.empty() ? "" : " ", noun,
                      noun.empty() || more == 1 ? "" : "s");
}

// "a, b, c and 4 more": the first `max` of `names`.
inline std::string JoinFirst(const std::vector<std::string>& names, size_t max, absl::string_view separator = ", ",
                             absl::string_view before_more = " ", absl::string_view noun = "") {
  const size_t shown = std::min(max, names.size());
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), separator),
                      AndMore(shown, names.size(), before_more, noun));
}

}  // namespace trainyard
