#include "spec/choices.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {

namespace {

constexpr uint64_t kSmallDivisorMax = 1 << 16;  // the square root of 2^32; limits the loop for greater numbers

}  // namespace

std::vector<uint64_t> DivisorsOf(uint64_t n) {
  std::vector<uint64_t> divisors;
  for (uint64_t d = 1; d <= kSmallDivisorMax && d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d != n / d) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

std::vector<uint64_t> DivisorsNear(uint64_t n, uint64_t near) {
  std::vector<uint64_t> divisors = DivisorsOf(n);
  std::sort(divisors.begin(), divisors.end(), [near](uint64_t a, uint64_t b) {
    auto distance = [near](uint64_t d) { return d > near ? d - near : near - d; };
    return distance(a) != distance(b) ? distance(a) < distance(b) : a < b;
  });
  if (divisors.size() > 4) divisors.resize(4);
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

std::string Choices(const std::vector<uint64_t>& numbers) { return absl::StrJoin(numbers, ", "); }

std::string MultiplesAround(uint64_t near, uint64_t unit) {
  uint64_t below = near / unit * unit;
  return below == 0 ? absl::StrCat(unit) : absl::StrCat(below, " or ", below + unit);
}

}  // namespace trainyard
