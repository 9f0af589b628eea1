#include "planner/dimensions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spec/parallel_rules.h"

namespace trainyard::planner {

std::string ShapeText(const BatchShape& shape) { return absl::StrJoin(shape, " x "); }

BatchShape SplitSamples(const BatchShape& shape, uint64_t parts) {
  BatchShape out = shape;
  out[0] /= parts;
  out.insert(out.begin() + 1, parts);
  return out;
}

BatchShape SplitAttributes(const BatchShape& shape, uint64_t parts) {
  BatchShape out = shape;
  out.back() /= parts;
  out.insert(out.end() - 1, parts);
  return out;
}

Dimensions DimensionsOf(const Layout& layout) {
  Dimensions dimensions;
  dimensions.sample = layout.data_ranks();
  dimensions.attribute = layout.sequence ? layout.tensor : 1;
  dimensions.parameter = layout.stages * layout.tensor;
  if (ShardsParameters(layout.data)) dimensions.shards = layout.shard_ranks();
  return dimensions;
}

std::string DimensionsText(const Dimensions& dimensions) {
  std::string text = absl::StrCat("sample ", dimensions.sample, ", attribute ", dimensions.attribute, ", parameter ",
                                  dimensions.parameter);
  if (dimensions.shards > 1) absl::StrAppend(&text, " (stored parameters in ", dimensions.shards, " shards)");
  return text;
}

}  // namespace trainyard::planner
