#include "models/model_sizes.h"

#include "absl/strings/str_cat.h"

namespace trainyard {

absl::string_view FamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kGpt2:
      return "gpt2";
  }
  return "";
}

absl::Status CheckSizes(const ModelSizes& sizes) {
  if (sizes.layers < 1 || sizes.heads < 1 || sizes.width < 1 || sizes.context < 1 || sizes.vocabulary < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a ", FamilyName(sizes.family), " model needs sizes of at least 1; found layers ", sizes.layers, ", heads ",
        sizes.heads, ", width ", sizes.width, ", context ", sizes.context, ", vocabulary ", sizes.vocabulary));
  }
  if (sizes.width % sizes.heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads must divide width: ", sizes.width, " / ", sizes.heads,
                                                   " leaves ", sizes.width % sizes.heads));
  }
  if (!(sizes.dropout >= 0 && sizes.dropout < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout must be in [0, 1), found ", sizes.dropout));
  }
  return absl::OkStatus();
}

std::string SizesText(const ModelSizes& sizes) {
  return absl::StrCat(sizes.family == ModelFamily::kGpt2 ? "a GPT-2" : FamilyName(sizes.family), " of ", sizes.layers,
                      " layers, width ", sizes.width, ", context ", sizes.context, ", vocabulary ", sizes.vocabulary);
}

}  // namespace trainyard
