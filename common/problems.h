// Problems in a file or command that a user wrote. They are collected, each with its position, so that one run reports
// all of them.
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

// A position in a file, counted from 1. `line` 0: the file (or the `--set key=value`) as a whole.
struct Position {
  std::string file;
  int line = 0;
  int column = 0;
};

// The position of each key in the file, by its dotted path ("train.batch.micro").
using Positions = std::map<std::string, Position>;

struct Problem {
  bool is_warning = false;
  Position position;
  std::string path;  // dotted; may be empty
  std::string text;

  // "train.batch.micro: must be 1 to 16", without the position, for errors of the coordinator.
  std::string Message() const;
  // "job.yaml:6:14: train.batch.micro: must be 1 to 16".
  std::string ToString() const;
};

class Problems {
 public:
  // Look up the position of `path`, or of its nearest parent that has one, in `positions`.
  void AddError(const Positions& positions, absl::string_view path, absl::string_view text);
  void AddWarning(const Positions& positions, absl::string_view path, absl::string_view text);
  void Add(Problem problem);

  bool ok() const { return error_count_ == 0; }
  int error_count() const { return error_count_; }
  const std::vector<Problem>& all() const { return all_; }
  std::vector<Problem> Errors() const;
  std::vector<Problem> Warnings() const;

  // OK, or InvalidArgument with all errors in the order of the file, one per line.
  absl::Status ToStatus() const;

  // Problems beyond this number are counted but not stored, so that a file of garbage does not produce an equally long
  // report.
  static constexpr int kMax = 100;

 private:
  std::vector<Problem> all_;
  int error_count_ = 0;
};

}  // namespace trainyard
