#include "common/nearest_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace trainyard {

std::string NearestName(absl::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > 64) return "";
  std::string best;
  size_t best_distance = std::max<size_t>(1, std::min<size_t>(3, word.size() / 2)) + 1;
  for (const std::string& candidate : candidates) {
    const size_t n = word.size(), m = candidate.size();
    std::vector<std::vector<size_t>> d(n + 1, std::vector<size_t>(m + 1));
    for (size_t i = 0; i <= n; ++i) d[i][0] = i;
    for (size_t j = 0; j <= m; ++j) d[0][j] = j;
    for (size_t i = 1; i <= n; ++i) {
      for (size_t j = 1; j <= m; ++j) {
        bool same = absl::ascii_tolower(word[i - 1]) == absl::ascii_tolower(candidate[j - 1]);
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (same ? 0 : 1)});
        if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] && word[i - 2] == candidate[j - 1]) {
          d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
      }
    }
    if (d[n][m] < best_distance) {
      best_distance = d[n][m];
      best = candidate;
    }
  }
  return best;
}

}  // namespace trainyard
