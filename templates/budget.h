// Limits the work, the memory and the depth of one rendering, so that a hostile template ends with an error. Not
// thread-safe.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard::templates {

class Budget {
 public:
  // A template of 100 lines needs some thousand steps per message.
  static constexpr size_t kStepsMax = 50'000'000;
  static constexpr size_t kBytesMax = size_t{256} << 20;  // of texts and lists that were made, together
  static constexpr size_t kBytesPerStep = 64;             // bytes that are compared or copied in the time of a step
  static constexpr int kDepthMax = 400;

  // Counts steps, and the bytes that were read in them. Possible errors: ResourceExhausted.
  absl::Status Spend(size_t steps, size_t bytes_read = 0) {
    steps += bytes_read / kBytesPerStep;
    steps_ = steps > kStepsMax - steps_ ? kStepsMax : steps_ + steps;
    if (steps_ < kStepsMax) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the template needs more than ", kStepsMax, " steps"));
  }
  // Counts new text or items. Possible errors: ResourceExhausted.
  absl::Status Make(size_t bytes) {
    bytes_ = bytes > kBytesMax - bytes_ ? kBytesMax : bytes_ + bytes;
    if (bytes_ == kBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("the template makes more than ", kBytesMax, " bytes of text"));
    }
    return Spend(1, bytes);
  }
  absl::Status Enter() {
    if (++depth_ <= kDepthMax) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("the template is nested more than ", kDepthMax, " deep"));
  }
  void Leave() { --depth_; }
  size_t steps() const { return steps_; }

 private:
  size_t steps_ = 0, bytes_ = 0;
  int depth_ = 0;
};

// The largest depth of lists and dictionaries in one another.
inline constexpr int kValueDepthMax = 100;

}  // namespace trainyard::templates
