#include "models/gpt2_description.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "models/description_builder.h"

namespace trainyard {
namespace {

void AddNorm(DescriptionBuilder& builder, const std::string& name, int64_t width) {
  builder.AddOnes(name + ".weight", width);
  builder.AddZeros(name + ".bias", width);
}

// A projection from `in` to `out`, whose matrix is stored as [in, out]. Its columns consist of `parts` equal parts.
// Tensor ranks divide each part in multiples of `granule` columns.
void AddColumnConv1d(DescriptionBuilder& builder, const std::string& name, int64_t in, int64_t out, int64_t parts,
                     int64_t granule) {
  builder.AddProjection(name, in, out, /*transposed=*/false);
  builder.Split({.dimension = 1, .parts = parts, .granule = granule});
  builder.AddZeros(name + ".bias", out);
  builder.Split({.dimension = 0, .parts = parts, .granule = granule});
}

// The same, but tensor ranks divide the rows, and each has the whole bias.
void AddRowConv1d(DescriptionBuilder& builder, const std::string& name, int64_t in, int64_t out, int64_t granule) {
  builder.AddProjection(name, in, out, /*transposed=*/false);
  builder.Split({.dimension = 0, .granule = granule});
  builder.AddZeros(name + ".bias", out);
}

// Returns the indexes of wte and wpe, then of the blocks, then of ln_f, which is in the root unit with the first two.
std::vector<int> Gpt2ExportOrder(const ModelDescription& model) {
  std::vector<int> order = {0, 1};
  order.resize(model.parameters.size() - 2);
  std::iota(order.begin() + 2, order.end(), model.units[0].num_parameters);
  order.insert(order.end(), {2, 3});
  return order;
}

}  // namespace

ModelDescription DescribeGpt2(const ModelSizes& sizes) {
  const int64_t d = sizes.width;
  // Files of old versions of transformers contain the causal masks in addition to the weights.
  DescriptionBuilder builder(sizes, {.prefix = "transformer.",
                                     .embedding = "wte.weight",
                                     .head = "lm_head.weight",
                                     .ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"}});
  builder.BeginUnit("root");
  builder.AddMatrix("wte.weight", sizes.vocabulary, d);
  builder.UsedBy(RootUse::kBoth);
  builder.Split({.dimension = 0});
  builder.AddMatrix("wpe.weight", sizes.context, d);
  builder.UsedBy(RootUse::kEmbedding);
  AddNorm(builder, "ln_f", d);
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string name = absl::StrCat("h.", layer);
    builder.BeginUnit(name);
    AddNorm(builder, name + ".ln_1", d);
    const int64_t head = d / sizes.heads;
    AddColumnConv1d(builder, name + ".attn.c_attn", d, 3 * d, /*parts=*/3, head);
    AddRowConv1d(builder, name + ".attn.c_proj", d, d, head);
    AddNorm(builder, name + ".ln_2", d);
    AddColumnConv1d(builder, name + ".mlp.c_fc", d, 4 * d, /*parts=*/1, /*granule=*/1);
    AddRowConv1d(builder, name + ".mlp.c_proj", 4 * d, d, /*granule=*/1);
    builder.EndUnit();
  }
  ModelDescription model = builder.TakeModel();
  model.export_order = Gpt2ExportOrder(model);
  return model;
}

uint64_t CountGpt2Parameters(const ModelSizes& sizes) {
  const uint64_t width = static_cast<uint64_t>(sizes.width), layers = static_cast<uint64_t>(sizes.layers);
  // A block: two norms (4w), attention (4w^2 + 4w), the two-layer perceptron (8w^2 + 5w). Then the last norm.
  const uint64_t block = 12 * width * width + 13 * width;
  return static_cast<uint64_t>(sizes.vocabulary + sizes.context) * width + layers * block + 2 * width;
}

}  // namespace trainyard
