// Identifiers as types, so that two of them cannot be swapped in a call, and random ids. Plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace trainyard {

// A string that names something. `Tag` makes the types distinct.
template <typename Tag>
class StringId {
 public:
  StringId() = default;
  explicit StringId(std::string value) : value_(std::move(value)) {}
  explicit StringId(absl::string_view value) : value_(value) {}
  explicit StringId(const char* value) : value_(value) {}

  const std::string& value() const { return value_; }
  bool empty() const { return value_.empty(); }

  friend bool operator==(const StringId& a, const StringId& b) { return a.value_ == b.value_; }
  friend auto operator<=>(const StringId& a, const StringId& b) { return a.value_ <=> b.value_; }
  template <typename H>
  friend H AbslHashValue(H h, const StringId& id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, const StringId& id) { return out << id.value_; }

 private:
  std::string value_;
};

// A number that names something.
template <typename Tag>
class NumberId {
 public:
  constexpr NumberId() = default;
  constexpr explicit NumberId(uint64_t value) : value_(value) {}

  constexpr uint64_t value() const { return value_; }

  friend constexpr bool operator==(NumberId a, NumberId b) { return a.value_ == b.value_; }
  friend constexpr auto operator<=>(NumberId a, NumberId b) { return a.value_ <=> b.value_; }
  template <typename H>
  friend H AbslHashValue(H h, NumberId id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, NumberId id) { return out << id.value_; }

 private:
  uint64_t value_ = 0;
};

using JobId = StringId<struct JobIdTag>;
using HostName = StringId<struct HostNameTag>;
// The number of the process group of a job, counted from 1. 0: none yet.
using Generation = NumberId<struct GenerationTag>;
// Identifies one run of a process. Random, never 0.
using Incarnation = NumberId<struct IncarnationTag>;

// `length` characters of a-z and 2-7 from the system's randomness: job ids, tokens, cluster ids.
std::string RandomId(int length);
// Random, never 0.
Incarnation RandomIncarnation();

}  // namespace trainyard
