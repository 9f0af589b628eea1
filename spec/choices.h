// Numbers a message offers in place of a wrong one. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainyard {

// All divisors of n, ascending; of an n above 2^32 those that are at most 2^16 or n over one of these, so that it takes
// 2^16 divisions at most. 0 has none.
std::vector<uint64_t> DivisorsOf(uint64_t n);

// Divisors of n near `near`, at most four, ascending.
std::vector<uint64_t> DivisorsNear(uint64_t n, uint64_t near);

// "1, 2, 4".
std::string Choices(const std::vector<uint64_t>& numbers);

// Multiples of `unit` just below and above `near`: "6 or 9".
std::string MultiplesAround(uint64_t near, uint64_t unit);

}  // namespace trainyard
