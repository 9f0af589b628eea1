#include "models/gpt2_description.h"

#include <numeric>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

constexpr InitialValue kZeros = {.kind = InitialValue::Kind::kZeros};
constexpr InitialValue kOnes = {.kind = InitialValue::Kind::kOnes};
constexpr InitialValue kNormal = {.kind = InitialValue::Kind::kNormal, .deviation = 0.02};

class Builder {
 public:
  void BeginUnit(std::string name) {
    model_.units.push_back(
        {.name = std::move(name), .first_parameter = static_cast<int>(model_.parameters.size()), .num_parameters = 0});
  }
  void AddMatrix(std::string name, int64_t rows, int64_t columns) { Add(std::move(name), {rows, columns}, kNormal); }
  void AddNorm(const std::string& name, int64_t width) {
    Add(name + ".weight", {width}, kOnes);
    Add(name + ".bias", {width}, kZeros);
  }
  void AddProjection(const std::string& name, int64_t in, int64_t out) {
    AddMatrix(name + ".weight", in, out);
    Add(name + ".bias", {out}, kZeros);
  }
  ModelDescription TakeModel() { return std::move(model_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape, InitialValue initial) {
    model_.parameters.push_back({.name = std::move(name), .shape = std::move(shape), .initial = initial});
    model_.units.back().num_parameters++;
  }

  ModelDescription model_;
};

// Returns the indexes of wte and wpe, then of the blocks, then of ln_f, which is in the root unit with the first two.
std::vector<int> ExportOrder(const ModelDescription& model) {
  std::vector<int> order = {0, 1};
  order.resize(model.parameters.size() - 2);
  std::iota(order.begin() + 2, order.end(), model.units[0].num_parameters);
  order.insert(order.end(), {2, 3});
  return order;
}

}  // namespace

ModelDescription DescribeGpt2(const ModelSizes& sizes) {
  const int64_t d = sizes.width;
  Builder builder;
  builder.BeginUnit("root");
  builder.AddMatrix("wte.weight", sizes.vocabulary, d);
  builder.AddMatrix("wpe.weight", sizes.context, d);
  builder.AddNorm("ln_f", d);
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string name = absl::StrCat("h.", layer);
    builder.BeginUnit(name);
    builder.AddNorm(name + ".ln_1", d);
    builder.AddProjection(name + ".attn.c_attn", d, 3 * d);
    builder.AddProjection(name + ".attn.c_proj", d, d);
    builder.AddNorm(name + ".ln_2", d);
    builder.AddProjection(name + ".mlp.c_fc", d, 4 * d);
    builder.AddProjection(name + ".mlp.c_proj", 4 * d, d);
  }
  ModelDescription model = builder.TakeModel();
  model.sizes = sizes;
  model.export_order = ExportOrder(model);
  // Files of old versions of transformers contain the causal masks besides the weights.
  model.hugging_face = {.prefix = "transformer.",
                        .embedding = "wte.weight",
                        .head = "lm_head.weight",
                        .ignored = {"h.*.attn.bias", "h.*.attn.masked_bias"}};
  return model;
}

uint64_t CountGpt2Parameters(const ModelSizes& sizes) {
  const uint64_t width = static_cast<uint64_t>(sizes.width), layers = static_cast<uint64_t>(sizes.layers);
  // A block: two norms (4w), attention (4w^2 + 4w), the two-layer perceptron (8w^2 + 5w). Then the last norm.
  const uint64_t block = 12 * width * width + 13 * width;
  return static_cast<uint64_t>(sizes.vocabulary + sizes.context) * width + layers * block + 2 * width;
}

}  // namespace trainyard
