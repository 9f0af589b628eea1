#include "common/problems.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"

namespace trainyard {
namespace {

// Returns the position of `path` or of its nearest parent that has one; otherwise that of the whole file.
Position PositionOf(const Positions& positions, absl::string_view path) {
  std::string parent(path);
  while (true) {
    auto found = positions.find(parent);
    if (found != positions.end()) return found->second;
    size_t dot = parent.rfind('.');
    if (dot == std::string::npos) break;
    parent.resize(dot);
  }
  auto root = positions.find("");
  return root == positions.end() ? Position{} : root->second;
}

}  // namespace

std::string Problem::Message() const { return path.empty() ? text : absl::StrCat(path, ": ", text); }

std::string Problem::ToString() const {
  std::string at;
  if (!position.file.empty()) at = absl::StrCat(position.file, ": ");
  if (position.line > 0) at = absl::StrCat(position.file, ":", position.line, ":", position.column, ": ");
  return absl::StrCat(at, is_warning ? "warning: " : "", Message());
}

void Problems::AddError(const Positions& positions, absl::string_view path, absl::string_view text) {
  Add({.is_warning = false,
       .position = PositionOf(positions, path),
       .path = std::string(path),
       .text = std::string(text)});
}

void Problems::AddWarning(const Positions& positions, absl::string_view path, absl::string_view text) {
  Add({.is_warning = true,
       .position = PositionOf(positions, path),
       .path = std::string(path),
       .text = std::string(text)});
}

void Problems::Add(Problem problem) {
  if (!problem.is_warning) ++error_count_;
  if (all_.size() < kMax) all_.push_back(std::move(problem));
}

std::vector<Problem> Problems::Errors() const {
  std::vector<Problem> errors;
  for (const Problem& problem : all_) {
    if (!problem.is_warning) errors.push_back(problem);
  }
  std::stable_sort(errors.begin(), errors.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.position.line, a.position.column) < std::pair(b.position.line, b.position.column);
  });
  return errors;
}

std::vector<Problem> Problems::Warnings() const {
  std::vector<Problem> warnings;
  for (const Problem& problem : all_) {
    if (problem.is_warning) warnings.push_back(problem);
  }
  return warnings;
}

absl::Status Problems::ToStatus() const {
  if (ok()) return absl::OkStatus();
  std::vector<Problem> errors = Errors();
  std::string text = absl::StrJoin(
      errors, "\n", [](std::string* out, const Problem& problem) { absl::StrAppend(out, problem.ToString()); });
  return absl::InvalidArgumentError(
      absl::StrCat(text, AndMore(errors.size(), static_cast<size_t>(error_count_), "\n")));
}

}  // namespace trainyard
