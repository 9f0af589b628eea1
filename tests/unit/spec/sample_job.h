// A valid job, for tests that change one value of it.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/problems.h"
#include "spec/job_file.h"

namespace trainyard {

inline constexpr char kGoodJob[] = R"(name: tiny
train:
  model:
    layers: 2
    heads: 2
    width: 16
    context: 8
  data:
    text: [corpus]
  batch:
    global: 8
    micro: 2
  steps: 10
resources:
  ranks: 2
)";

struct ReadJob {
  v1::JobSpec spec;
  Problems problems;

  std::string Errors() const {
    return absl::StrJoin(problems.Errors(), "\n",
                         [](std::string* out, const Problem& p) { out->append(p.ToString()); });
  }
  std::string Warnings() const {
    return absl::StrJoin(problems.Warnings(), "\n",
                         [](std::string* out, const Problem& p) { out->append(p.ToString()); });
  }
};

inline ReadJob Read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  ReadJob read;
  read.spec =
      ReadJobFile({.text = text, .file_name = "job.yaml", .working_directory = "/home/ada", .overrides = overrides},
                  &read.problems);
  return read;
}

}  // namespace trainyard
