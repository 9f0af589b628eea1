// Exports adapters, merged into the model or alone, and reads adapters of PEFT. tests/interop/lora_test.py checks that
// PEFT agrees.
#include "checkpoint/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>

#include "checkpoint/merge_adapter.h"
#include "checkpoint/model_export.h"
#include "checkpoint/safetensors.h"
#include "models/adapter_config.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const ModelSizes kAdapted{.layers = 2,
                          .heads = 2,
                          .width = 4,
                          .context = 8,
                          .vocabulary = 32,
                          .lora = {.rank = 2, .alpha = 6, .targets = {"attn.c_proj", "h.1.mlp.c_fc"}}};

class AdapterFilesTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeFolders(folder_ / "run").ok()); }

  // A checkpoint in which all elements differ.
  std::unique_ptr<Checkpoint> SavedRun(const ModelSizes& sizes) {
    std::vector<TensorBytes> tensors;
    for (const ParameterDescription& parameter : DescribeModel(sizes).ParametersInExportOrder()) {
      std::vector<float>& values = values_.emplace_back(*CountElements(parameter.shape));
      for (float& value : values) value = next_++;
      tensors.push_back({.name = parameter.name,
                         .role = "parameter",
                         .dtype = "F32",
                         .shape = parameter.shape,
                         .bytes = {reinterpret_cast<const char*>(values.data()), values.size() * 4}});
    }
    auto saved = WriteCheckpoint(folder_ / "run", SmallManifest(7), tensors, FileSystem::Real());
    EXPECT_TRUE(saved.ok()) << saved.status();
    return *Checkpoint::Open(saved->path);
  }

  static std::vector<float> ValuesOf(const Checkpoint& checkpoint, const ModelDescription& model, int index) {
    const ParameterDescription& parameter = model.parameters[static_cast<size_t>(index)];
    std::vector<float> values(*CountElements(parameter.shape));
    EXPECT_TRUE(checkpoint
                    .ReadTensor("parameter", parameter.name, "F32", parameter.shape,
                                absl::MakeSpan(reinterpret_cast<char*>(values.data()), values.size() * 4))
                    .ok());
    return values;
  }

  static std::vector<float> ValuesIn(const SafetensorsFile& file, const std::string& name) {
    const TensorInfo* info = file.Find(name);
    EXPECT_NE(info, nullptr) << name;
    if (info == nullptr) return {};
    const absl::string_view bytes = file.Bytes(*info);
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Writes an adapter folder as another program might have written it.
  void WriteAdapter(std::vector<TensorInfo> infos) {
    uint64_t bytes = 0;
    for (const TensorInfo& info : infos) bytes += *CountElements(info.shape) * DtypeBytes(info.dtype);
    ASSERT_TRUE(MakeFolders(folder_ / "adapter").ok());
    const std::string header = SafetensorsHeader(infos, {});
    ASSERT_TRUE(
        WriteFileAtomically(folder_ / "adapter/adapter_model.safetensors", header + std::string(bytes, '\1')).ok());
  }

  const TemporaryFolder folder_;
  std::deque<std::vector<float>> values_;
  float next_ = 1;
};

TEST_F(AdapterFilesTest, ExportOfTheModel_MergesAdaptersIntoMatricesOfBothLayouts) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    ModelSizes sizes = kAdapted;
    sizes.family = family;
    if (family == ModelFamily::kLlama) {
      sizes = CompleteLlamaSizes(sizes);
      sizes.inner = 6;
      sizes.lora.targets = {"v_proj", "layers.1.mlp.down_proj"};
    }
    SCOPED_TRACE(FamilyName(family));
    const ModelDescription model = DescribeModel(sizes);
    const std::unique_ptr<Checkpoint> checkpoint = SavedRun(sizes);
    const std::string out = folder_ / absl::StrCat("out-", FamilyName(family));

    ASSERT_TRUE(ExportModel(*checkpoint, sizes, out, FileSystem::Real()).ok());

    auto file = SafetensorsFile::Open(out + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->tensors().size(), DescribeModel(BaseSizes(sizes)).parameters.size());
    int merged = 0;
    for (const ProjectionDescription& projection : model.projections) {
      const std::vector<float> w = ValuesOf(*checkpoint, model, projection.weight),
                               found = ValuesIn(**file, HuggingFaceName(model, projection.name + ".weight"));
      if (projection.lora_a < 0) {
        EXPECT_EQ(found, w) << projection.name;
        continue;
      }
      ++merged;
      const std::vector<float> a = ValuesOf(*checkpoint, model, projection.lora_a),
                               b = ValuesOf(*checkpoint, model, projection.lora_b);
      for (int64_t o = 0; o < projection.out; ++o) {
        for (int64_t i = 0; i < projection.in; ++i) {
          double sum = 0;
          for (int64_t k = 0; k < 2; ++k) sum += 3.0 * b[o * 2 + k] * a[k * projection.in + i];
          const int64_t at = projection.transposed ? o * projection.in + i : i * projection.out + o;
          EXPECT_FLOAT_EQ(found[at], static_cast<float>(w[at] + sum))
              << projection.name << ", output " << o << ", input " << i;
        }
      }
    }
    EXPECT_EQ(merged, 3);
    std::filesystem::remove_all(folder_ / "run/step-00000007");
  }
}

TEST_F(AdapterFilesTest, AMergedWeightThatTheTypeCannotStore_IsRefused) {
  next_ = 100;  // every weight fits into fp16, but the sum of products in a merged matrix does not
  const std::unique_ptr<Checkpoint> checkpoint = SavedRun(kAdapted);

  const absl::Status refused =
      ExportModel(*checkpoint, kAdapted, folder_ / "out", FileSystem::Real(), {.dtype = "F16"});

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("h.0.attn.c_proj.weight has the value "));
  EXPECT_THAT(refused.message(), testing::Not(HasSubstr("F64")));
  EXPECT_TRUE(ExportAdapter(*checkpoint, kAdapted, "", folder_ / "adapter", FileSystem::Real(), "F16").ok());
}

TEST_F(AdapterFilesTest, ExportOfTheAdapterAlone_IsReadAgain) {
  const ModelDescription model = DescribeModel(kAdapted);
  const std::unique_ptr<Checkpoint> checkpoint = SavedRun(kAdapted);

  ASSERT_TRUE(ExportAdapter(*checkpoint, kAdapted, "base-model", folder_ / "out", FileSystem::Real()).ok());

  auto file = SafetensorsFile::Open(folder_ / "out/adapter_model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 6u);
  EXPECT_NE((*file)->Find("base_model.model.transformer.h.1.mlp.c_fc.lora_B.weight"), nullptr);
  auto text = ReadAdapterConfigText(folder_ / "out");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*ParseAdapterConfig(*text, "a", ModelFamily::kGpt2),
            (LoraSettings{.rank = 2, .alpha = 6, .targets = {"attn.c_proj", "h.1.mlp.c_fc"}}));
  auto adapter = AdapterWeights::Open(folder_ / "out", model);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  for (const ProjectionDescription& projection : model.projections) {
    if (projection.lora_a < 0) continue;
    const std::vector<float> expected = ValuesOf(*checkpoint, model, projection.lora_a);
    std::vector<float> found(expected.size());
    const absl::Span<char> into(reinterpret_cast<char*>(found.data()), found.size() * 4);
    ASSERT_TRUE((*adapter)->Read(projection.name + ".lora_A.weight", "F32", into).ok());
    EXPECT_EQ(found, expected);
  }
}

TEST_F(AdapterFilesTest, FolderThatAppearsDuringTheExport_IsNotRemoved) {
  RivalDisk disk;

  const absl::Status exported = ExportAdapter(*SavedRun(kAdapted), kAdapted, "", folder_ / "out", disk);

  EXPECT_TRUE(exported.ok()) << exported;
  EXPECT_TRUE(FileExists(folder_ / "out/adapter_model.safetensors"));
  EXPECT_TRUE(FileExists(folder_ / "out.partial/mine.txt"));
}

TEST_F(AdapterFilesTest, ExportOfAnAdapterThatDoesNotExist_IsRefused) {
  const std::unique_ptr<Checkpoint> checkpoint = SavedRun(BaseSizes(kAdapted));

  const absl::Status refused = ExportAdapter(*checkpoint, BaseSizes(kAdapted), "", folder_ / "out", FileSystem::Real());
  const absl::Status other = ExportAdapter(*checkpoint, kAdapted, "", folder_ / "out", FileSystem::Real());

  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("has no adapters: its job did not have train.lora"));
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(other.message(), HasSubstr("missing: h.0.attn.c_proj.lora_A.weight"));
  EXPECT_FALSE(FileExists(folder_ / "out"));
}

TEST_F(AdapterFilesTest, WrongTensors_AreAllListed) {
  const std::string prefix = "base_model.model.transformer.";
  WriteAdapter({{.name = prefix + "h.0.attn.c_proj.lora_A.weight", .dtype = "F32", .shape = {2, 4}},
                {.name = prefix + "h.0.attn.c_proj.lora_B.weight", .dtype = "F32", .shape = {4, 3}},
                {.name = prefix + "h.1.attn.c_proj.lora_A.weight", .dtype = "I32", .shape = {2, 4}},
                {.name = prefix + "h.1.attn.c_proj.lora_B.weight", .dtype = "F32", .shape = {4, 2}},
                {.name = prefix + "h.1.mlp.c_fc.lora_A.weight", .dtype = "F32", .shape = {2, 4}},
                {.name = "base_model.model.score.weight", .dtype = "F32", .shape = {2, 4}}});

  const absl::Status status = AdapterWeights::Open(folder_ / "adapter", DescribeModel(kAdapted)).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("missing: h.1.mlp.c_fc.lora_B.weight"),
                    HasSubstr("unexpected: score.weight"),
                    HasSubstr("wrong shape: h.0.attn.c_proj.lora_B.weight is [4, 3], expected [4, 2]"),
                    HasSubstr("h.1.attn.c_proj.lora_A.weight is I32")));
}

TEST_F(AdapterFilesTest, FolderWithoutWeights_IsRefusedWithTheRemedy) {
  ASSERT_TRUE(MakeFolders(folder_ / "adapter").ok());
  const auto open = [&] {
    return std::string(AdapterWeights::Open(folder_ / "adapter", DescribeModel(kAdapted)).status().message());
  };
  EXPECT_THAT(open(),
              HasSubstr("has no adapter_model.safetensors; save the adapter there with save_pretrained of PEFT"));
  ASSERT_TRUE(WriteFileAtomically(folder_ / "adapter/adapter_model.bin", "x").ok());

  EXPECT_THAT(open(), HasSubstr("safe_serialization=True"));
  EXPECT_TRUE(absl::IsNotFound(ReadAdapterConfigText(folder_ / "adapter").status()));
}

}  // namespace
}  // namespace trainyard
