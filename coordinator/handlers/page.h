// Pages of the lists of the API. A page ends when it has enough items or bytes. A token is the position of the next
// page in the order of the list, so items that are added or removed meanwhile neither hide nor repeat others. Only the
// token of GetQueue is a number of entries, because the order of the queue changes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/error_details.h"
#include "common/limits.h"

namespace trainyard {

// The space that is left in a page.
class PageSpace {
 public:
  // `requested`: page_size of the request; 0: `items_default`.
  PageSpace(uint32_t requested, uint32_t items_default) : items_(requested == 0 ? items_default : requested) {}

  // Whether an item of this size belongs to this page. A page has at least one item, however large it is.
  bool Take(size_t bytes) {
    constexpr size_t kFieldBytes = 8;  // overhead of each item in the message
    bytes_ += bytes + kFieldBytes;
    if (taken_ >= items_ || (taken_ > 0 && bytes_ > limits::kEventsPageBytes)) return false;
    ++taken_;
    return true;
  }

 private:
  const uint32_t items_;
  uint32_t taken_ = 0;
  size_t bytes_ = 0;
};

// Reads a number of a page token in the only form in which the server writes it: digits, without leading zeros.
inline bool ReadPosition(absl::string_view text, uint64_t* number) {
  return !text.empty() && absl::ascii_isdigit(text.front()) && absl::SimpleAtoi(text, number) &&
         absl::StrCat(*number) == text;
}

inline absl::Status PageTokenError(absl::string_view token) {
  return InvalidFieldError("page_token", absl::StrCat("page_token '", token.substr(0, 64),
                                                      "' is not valid; leave it empty for the first page"));
}

}  // namespace trainyard
