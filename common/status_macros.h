// RETURN_IF_ERROR and ASSIGN_OR_RETURN with the semantics of Abseil's macros of 2026, which Debian's Abseil lacks.
//
//   RETURN_IF_ERROR(store.Put(job)) << "while accepting job " << id;
//   ASSIGN_OR_RETURN(Job job, store.Get(id));
//   ASSIGN_OR_RETURN(Job job, store.Get(id), << "while cancelling");
//
// The text is appended to the message of the status after "; ". Code and payloads stay as they are.
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard {

class StatusBuilder {
 public:
  explicit StatusBuilder(absl::Status status) : status_(std::move(status)) {}

  template <typename T>
  StatusBuilder&& operator<<(const T& value) && {
    text_ << value;
    return std::move(*this);
  }

  operator absl::Status() && {  // NOLINT: implicit, since it ends a return statement
    std::string text = text_.str();
    if (text.empty()) return std::move(status_);
    absl::Status annotated(status_.code(), absl::StrCat(status_.message(), "; ", text));
    status_.ForEachPayload(
        [&annotated](absl::string_view url, const absl::Cord& payload) { annotated.SetPayload(url, payload); });
    return annotated;
  }

  template <typename T>
  operator absl::StatusOr<T>() && {  // NOLINT
    return static_cast<absl::Status>(std::move(*this));
  }

 private:
  absl::Status status_;
  std::ostringstream text_;
};

namespace internal {
inline absl::Status ToStatus(absl::Status status) { return status; }
template <typename T>
absl::Status ToStatus(const absl::StatusOr<T>& result) {
  return result.status();
}
}  // namespace internal

}  // namespace trainyard

#define RETURN_IF_ERROR(expression)                                                                                   \
  if (absl::Status _status_of_expression = ::trainyard::internal::ToStatus(expression); _status_of_expression.ok()) { \
  } else /* NOLINT */                                                                                                 \
    return ::trainyard::StatusBuilder(std::move(_status_of_expression))

#define TRAINYARD_CONCAT_INNER(a, b) a##b
#define TRAINYARD_CONCAT(a, b) TRAINYARD_CONCAT_INNER(a, b)
#define TRAINYARD_ASSIGN_OR_RETURN_3(result, left, expression, error) \
  auto result = (expression);                                         \
  if (!result.ok()) {                                                 \
    ::trainyard::StatusBuilder _(std::move(result).status());         \
    return std::move(_) error;                                        \
  }                                                                   \
  left = std::move(result).value()
#define TRAINYARD_ASSIGN_OR_RETURN_2(result, left, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return std::move(result).status();         \
  left = std::move(result).value()
#define TRAINYARD_PICK(_1, _2, _3, NAME, ...) NAME
#define ASSIGN_OR_RETURN(...)                                                                       \
  TRAINYARD_PICK(__VA_ARGS__, TRAINYARD_ASSIGN_OR_RETURN_3R, TRAINYARD_ASSIGN_OR_RETURN_2R, unused) \
  (__VA_ARGS__)
#define TRAINYARD_ASSIGN_OR_RETURN_2R(left, expression) \
  TRAINYARD_ASSIGN_OR_RETURN_2(TRAINYARD_CONCAT(_result_, __LINE__), left, expression)
#define TRAINYARD_ASSIGN_OR_RETURN_3R(left, expression, error) \
  TRAINYARD_ASSIGN_OR_RETURN_3(TRAINYARD_CONCAT(_result_, __LINE__), left, expression, error)
