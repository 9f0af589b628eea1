// Finds the numbers that a message offers in place of a wrong one. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainyard {

// Returns all divisors of n, ascending, none for 0. For n above 2^32, returns only each divisor d of at most 2^16
// and n / d, so that at most 2^16 divisions are needed.
std::vector<uint64_t> DivisorsOf(uint64_t n);

// Returns up to four divisors of n near `near`, ascending.
std::vector<uint64_t> DivisorsNear(uint64_t n, uint64_t near);

// Returns "1, 2, 4".
std::string Choices(const std::vector<uint64_t>& numbers);

// Returns the multiples of `unit` next to `near`: "6 or 9".
std::string MultiplesAround(uint64_t near, uint64_t unit);

}  // namespace trainyard
