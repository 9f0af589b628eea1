#include "worker/model/model.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

constexpr size_t kProblemsShown = 3;

std::string ShapeText(at::IntArrayRef sizes) { return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]"); }

// "what a, b, c and 4 more"; empty when there is none.
void Report(absl::string_view what, const std::vector<std::string>& found, std::vector<std::string>& problems) {
  if (found.empty()) return;
  size_t shown = std::min(found.size(), kProblemsShown);
  std::string text = absl::StrCat(what, " ", absl::StrJoin(found.begin(), found.begin() + shown, ", "));
  if (found.size() > shown) absl::StrAppend(&text, " and ", found.size() - shown, " more");
  problems.push_back(std::move(text));
}

}  // namespace

int64_t Model::num_elements() const {
  int64_t sum = 0;
  for (const NamedTensor& parameter : parameters_) sum += parameter.tensor.numel();
  return sum;
}

absl::Status LoadParameters(const std::vector<NamedTensor>& values, Model& model) {
  absl::flat_hash_map<std::string, at::Tensor> wanted;
  for (const NamedTensor& parameter : model.parameters()) wanted.emplace(parameter.name, parameter.tensor);

  std::vector<std::string> unknown, twice, shapes, missing;
  absl::flat_hash_set<std::string> given;
  for (const NamedTensor& value : values) {
    auto it = wanted.find(value.name);
    if (it == wanted.end()) {
      unknown.push_back(value.name);
    } else if (!given.insert(value.name).second) {
      twice.push_back(value.name);
    } else if (value.tensor.sizes() != it->second.sizes()) {
      shapes.push_back(absl::StrCat(value.name, " is ", ShapeText(value.tensor.sizes()), ", the model's is ",
                                    ShapeText(it->second.sizes())));
    }
  }
  for (const NamedTensor& parameter : model.parameters()) {
    if (!given.contains(parameter.name)) missing.push_back(parameter.name);
  }
  std::vector<std::string> problems;
  Report("missing:", missing, problems);
  Report("not a parameter of this model:", unknown, problems);
  Report("given twice:", twice, problems);
  Report("wrong shape:", shapes, problems);
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the weights do not fit the model; ", absl::StrJoin(problems, "; ")));
  }

  c10::NoGradGuard no_grad;
  for (const NamedTensor& value : values) wanted.at(value.name).copy_(value.tensor);
  return absl::OkStatus();
}

}  // namespace trainyard
