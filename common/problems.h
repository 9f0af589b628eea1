// Problems found in what a person wrote: collected, so that one run tells them all, each with its place.
//
//   Problems problems;
//   ReadYaml({.text = text, .file_name = "job.yaml"}, &spec, &problems);
//   if (!problems.ok()) return problems.ToStatus();
//
// A plain value; not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// A place in a file, both counted from 1. `line` 0: the place is the file (or the `--set key=value`) as a whole.
struct Position {
  std::string file;
  int line = 0;
  int column = 0;
};

// Where each key that was given stands, by its dotted path ("train.batch.micro").
using Positions = std::map<std::string, Position>;

struct Problem {
  bool is_warning = false;
  Position position;
  std::string path;  // dotted; empty: none
  std::string text;

  // "train.batch.micro: must be 1 to 16"; without the place, as a coordinator tells it.
  std::string Message() const;
  // "job.yaml:6:14: train.batch.micro: must be 1 to 16".
  std::string ToString() const;
};

class Problems {
 public:
  // Both look the place of `path` up in `positions`, or in its nearest parent that has one.
  void AddError(const Positions& positions, absl::string_view path, absl::string_view text);
  void AddWarning(const Positions& positions, absl::string_view path, absl::string_view text);
  void Add(Problem problem);

  bool ok() const { return error_count_ == 0; }
  int error_count() const { return error_count_; }
  const std::vector<Problem>& all() const { return all_; }
  std::vector<Problem> Errors() const;
  std::vector<Problem> Warnings() const;

  // OK, or InvalidArgument with all errors, one a line, in the order of the file.
  absl::Status ToStatus() const;

  // More are counted, not kept: a file of noise must not make a report of its own size.
  static constexpr int kMax = 100;

 private:
  std::vector<Problem> all_;
  int error_count_ = 0;
};

}  // namespace trainyard
