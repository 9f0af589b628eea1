// Folders of weights as other programs write them, also damaged and hostile ones.
#include "checkpoint/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/foreign_weights.h"
#include "models/model_description.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelSizes SmallLlama(bool tied) {
  return CompleteLlamaSizes({.family = ModelFamily::kLlama,
                             .layers = 1,
                             .heads = 2,
                             .width = 4,
                             .context = 8,
                             .vocabulary = 16,
                             .inner = 6,
                             .tied = tied});
}

class WeightFilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeFolders(model_).ok()); }

  void Write(const std::string& name, absl::string_view text) {
    ASSERT_TRUE(WriteFileAtomically(JoinPath(model_, name), text).ok());
  }
  // Writes a file in which element i of each tensor of a floating type is 0.25 x i. All bytes of other tensors are 1.
  void WriteTensors(const std::string& name, std::vector<TensorInfo> infos) {
    const std::string header = SafetensorsHeader(infos, {});
    std::string data;
    for (const TensorInfo& info : infos) {
      const uint64_t elements = *CountElements(info.shape);
      std::string values(elements * 4, '\0');
      for (uint64_t i = 0; i < elements; ++i) {
        const float value = 0.25f * static_cast<float>(i);
        std::memcpy(values.data() + 4 * i, &value, sizeof value);
      }
      data += IsFloating(info.dtype) ? ConvertValues(values, "F32", info.dtype) : std::string(info.end - info.begin, 1);
    }
    Write(name, header + data);
  }
  std::vector<TensorInfo> InfosOf(const ModelDescription& model, const std::string& dtype) {
    std::vector<TensorInfo> infos;
    for (const ParameterDescription& parameter : model.ParametersInExportOrder()) {
      infos.push_back({.name = HuggingFaceName(model, parameter.name), .dtype = dtype, .shape = parameter.shape});
    }
    return infos;
  }
  std::string OpenError() { return std::string(WeightFiles::Open(model_).status().message()); }
  std::string ForeignError(const ModelSizes& sizes) {
    return std::string(ForeignWeights::Open(model_, DescribeModel(sizes)).status().message());
  }

  const TemporaryFolder folder_;
  const std::string model_ = folder_ / "model";
};

TEST_F(WeightFilesTest, Index_JoinsTheFilesThatItNames) {
  WriteTensors("model-00001-of-00002.safetensors", {{.name = "a", .dtype = "BF16", .shape = {2, 3}}});
  WriteTensors("model-00002-of-00002.safetensors", {{.name = "b", .dtype = "F32", .shape = {4}}});
  WriteTensors("unrelated.safetensors", {{.name = "c", .dtype = "F32", .shape = {4}}});
  Write(kWeightsIndexName, R"({"metadata": {"total_size": 28}, "weight_map":
      {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");

  auto files = WeightFiles::Open(model_);

  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->weights().size(), 2u);
  EXPECT_EQ((*files)->Find("c"), nullptr);
  float values[2];
  const absl::Span<char> bytes(reinterpret_cast<char*>(values), sizeof values);
  ASSERT_TRUE(WeightFiles::ReadRange(*(*files)->Find("a"), 4, 2, "F32", bytes).ok());
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 1.25f);
  EXPECT_TRUE(absl::IsOutOfRange(WeightFiles::ReadRange(*(*files)->Find("a"), 5, 2, "F32", bytes)));
  EXPECT_TRUE(absl::IsOutOfRange(WeightFiles::ReadRange(*(*files)->Find("a"), UINT64_MAX, 2, "F32", bytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(WeightFiles::ReadRange(*(*files)->Find("a"), 0, 1, "F32", bytes)));
}

TEST_F(WeightFilesTest, Identity_ChangesWithAShape) {
  WriteTensors(kWeightsName, {{.name = "a", .dtype = "F32", .shape = {2, 3}}});
  const std::string before = (*WeightFiles::Open(model_))->Identity();

  EXPECT_EQ((*WeightFiles::Open(model_))->Identity(), before);
  WriteTensors(kWeightsName, {{.name = "a", .dtype = "F32", .shape = {3, 2}}});
  EXPECT_NE((*WeightFiles::Open(model_))->Identity(), before);
}

TEST_F(WeightFilesTest, FolderWithOtherFormats_NamesThem) {
  Write("pytorch_model.bin", "x");

  EXPECT_TRUE(absl::IsNotFound(WeightFiles::Open(model_).status()));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("has neither model.safetensors nor model.safetensors.index.json"),
                                 HasSubstr("it has pytorch_model.bin, which is another format")));
}

// Regression: safetensors files with other names were said to be of another format.
TEST_F(WeightFilesTest, FolderWithPartsAndNoIndex_AsksForTheIndex) {
  Write("model-00001-of-00002.safetensors", "x");
  Write("training_args.bin", "x");

  EXPECT_TRUE(absl::IsNotFound(WeightFiles::Open(model_).status()));
  EXPECT_THAT(OpenError(),
              HasSubstr("it has model-00001-of-00002.safetensors: if these are the parts of the model, copy "
                        "model.safetensors.index.json there, too; otherwise save the model there"));
}

TEST_F(WeightFilesTest, ALinkWithoutATarget_OrAFifo_IsNamed) {
  std::filesystem::create_symlink("../blobs/missing", JoinPath(model_, kWeightsName));
  EXPECT_THAT(OpenError(), HasSubstr("cannot open " + JoinPath(model_, kWeightsName)));

  std::filesystem::remove(JoinPath(model_, kWeightsName));
  ASSERT_EQ(mkfifo(JoinPath(model_, kWeightsIndexName).c_str(), 0600), 0);
  EXPECT_THAT(OpenError(), HasSubstr("model.safetensors.index.json is a FIFO"));
}

TEST_F(WeightFilesTest, HostileIndex_IsRefusedWithEveryProblem) {
  WriteTensors("one.safetensors", {{.name = "a", .dtype = "F32", .shape = {2}}});
  WriteTensors("two.safetensors", {{.name = "a", .dtype = "F32", .shape = {2}}});
  const auto refusal = [&](const std::string& weight_map) {
    Write(kWeightsIndexName, absl::StrCat(R"({"weight_map": )", weight_map, "}"));
    return OpenError();
  };

  EXPECT_THAT(refusal(R"({"a": "../one.safetensors", "b": "/etc/passwd", "c": 7, "d": ".."})"),
              AllOf(HasSubstr("'a' is not in a file *.safetensors of the same folder, but in '../one.safetensors'"),
                    HasSubstr("'b' is not"), HasSubstr("'c' is not"), HasSubstr("'d' is not")));
  EXPECT_THAT(refusal(R"({"a": "one.safetensors", "b": "none.safetensors"})"), HasSubstr("none.safetensors"));
  EXPECT_THAT(refusal(R"({"a": "one.safetensors", "b": "one.safetensors"})"),
              HasSubstr("'b' is not in one.safetensors"));
  EXPECT_THAT(refusal(R"({"a": "one.safetensors", "b": "two.safetensors"})"), HasSubstr("'a' is in "));
  EXPECT_THAT(refusal(R"({"a": "one.safetensors", "a": "two.safetensors"})"), HasSubstr("'a' occurs twice"));
  EXPECT_THAT(refusal("{}"), HasSubstr("weight_map is empty"));
  EXPECT_THAT(refusal("[]"), HasSubstr("is not an index"));
  EXPECT_THAT(refusal(absl::StrCat("{\"a\": ", std::string(5000, '['), std::string(5000, ']'), "}")),
              HasSubstr("is not an index: it has more than 8 levels"));
  Write(kWeightsIndexName, "");
  EXPECT_THAT(OpenError(), HasSubstr("is empty"));
}

TEST_F(WeightFilesTest, MixedFloatTypesAndOldBuffers_AreAccepted) {
  const ModelDescription model = DescribeModel(SmallLlama(/*tied=*/false));
  std::vector<TensorInfo> infos = InfosOf(model, "BF16");
  for (TensorInfo& info : infos) {
    if (absl::StrContains(info.name, "norm")) info.dtype = "F16";
  }
  infos.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq", .dtype = "BF16", .shape = {1}});
  WriteTensors(kWeightsName, infos);

  auto weights = ForeignWeights::Open(model_, model);

  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->dtype(), "F32");
  double values[4];
  ASSERT_TRUE(
      (*weights)
          ->ReadRange("norm.weight", 0, 4, "F64", absl::Span<char>(reinterpret_cast<char*>(values), sizeof values))
          .ok());
  EXPECT_EQ(values[3], 0.75);
}

TEST_F(WeightFilesTest, TiedMatrix_MayBeUnderEitherName) {
  const ModelDescription model = DescribeModel(SmallLlama(/*tied=*/true));
  std::vector<TensorInfo> infos = InfosOf(model, "F32");
  ASSERT_EQ(infos[0].name, "model.embed_tokens.weight");
  infos[0].name = "lm_head.weight";
  WriteTensors(kWeightsName, infos);

  EXPECT_TRUE(ForeignWeights::Open(model_, model).ok()) << ForeignError(SmallLlama(true));

  infos.push_back({.name = "model.embed_tokens.weight", .dtype = "F32", .shape = {16, 4}});
  WriteTensors(kWeightsName, infos);
  EXPECT_TRUE(ForeignWeights::Open(model_, model).ok());

  infos.back().dtype = "F64";
  std::swap(infos.front(), infos.back());
  WriteTensors(kWeightsName, infos);
  EXPECT_THAT(ForeignError(SmallLlama(true)), HasSubstr("set tie_word_embeddings to false in config.json"));
}

TEST_F(WeightFilesTest, OtherWeights_AreRefusedWithEveryDifference) {
  std::vector<TensorInfo> infos = InfosOf(DescribeModel(SmallLlama(/*tied=*/true)), "F32");
  infos.push_back({.name = "layers.0.mlp.up_proj.weight", .dtype = "F32", .shape = {1}});
  WriteTensors(kWeightsName, infos);
  EXPECT_THAT(ForeignError(SmallLlama(true)),
              HasSubstr("present both with and without the prefix 'model.', so it is unknown which are meant; keep "
                        "only one of each pair: layers.0.mlp.up_proj.weight"));

  infos.pop_back();
  for (TensorInfo& info : infos) {
    if (absl::EndsWith(info.name, "gate_proj.weight")) info.dtype = "U32";
    if (absl::EndsWith(info.name, "k_proj.weight")) info.shape = {2, 2};
  }
  infos.push_back({.name = "model.layers.0.mlp.gate_proj.scales", .dtype = "F8_E4M3", .shape = {1}});
  WriteTensors(kWeightsName, infos);
  EXPECT_THAT(ForeignError(SmallLlama(false)),
              AllOf(HasSubstr("missing: lm_head.weight;"), HasSubstr("unexpected: layers.0.mlp.gate_proj.scales;"),
                    HasSubstr("layers.0.self_attn.k_proj.weight is [2, 2], expected [4, 4]"),
                    HasSubstr("not of type F64, F32, F16 or BF16 (quantised weights are not supported): "
                              "layers.0.mlp.gate_proj.weight is U32")));
}

}  // namespace
}  // namespace trainyard
