// To which weights exported adapters belong, and which tokenizer is exported.
#include "client/export_sources.h"

#include <gtest/gtest.h>

#include "checkpoint/import_writer.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/tensor_roles.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

v1::Model ModelOf(const std::string& path, const std::string& init_from) {
  v1::Model model;
  if (!path.empty()) model.set_path(path);
  if (!init_from.empty()) model.set_init_from(init_from);
  return model;
}

// Writes a checkpoint with one parameter, of a job with this model. Returns its path.
std::string WriteCheckpointOf(const std::string& run, const v1::Model& model, const std::string& parameter) {
  v1::JobSpec spec;
  *spec.mutable_train()->mutable_model() = model;
  Manifest manifest;
  manifest.job_id = manifest.job_name = "earlier";
  manifest.spec = spec.SerializeAsString();
  manifest.spec_digest = HashHex(manifest.spec);
  manifest.strategy = "ddp";
  manifest.world_size = 1;
  EXPECT_TRUE(MakeFolders(run).ok());
  const auto write = [](TensorSink sink) { return sink(std::string(4, '\0')); };
  const absl::StatusOr<SavedCheckpoint> saved = WriteImportedCheckpoint(
      run, manifest, {{.name = parameter, .role = kParameterRole, .dtype = "F32", .shape = {1}}}, write,
      FileSystem::Real());
  EXPECT_TRUE(saved.ok()) << saved.status();
  return saved.ok() ? saved->path : "";
}

// Regression: the adapters named the folder that gave the sizes, although they were trained on other weights.
TEST(ExportSources, AdaptersBelongToTheInitialWeights) {
  EXPECT_EQ(BaseOfAdapters(ModelOf("/hub/base", "/hub/base")), "/hub/base");
  EXPECT_EQ(BaseOfAdapters(ModelOf("/hub/base", "")), "/hub/base");
  EXPECT_EQ(BaseOfAdapters(ModelOf("/hub/base", "/hub/instruct")), "/hub/instruct");
  EXPECT_EQ(BaseOfAdapters(ModelOf("", "")), "");
}

TEST(ExportSources, AdaptersThatWereTrainedFurther_BelongToTheWeightsOfTheirFirstJob) {
  const TemporaryFolder folder;
  const v1::Model first = ModelOf("/hub/base", "/hub/base");
  const std::string adapted = WriteCheckpointOf(folder / "adapted", first, "h.0.attn.c_attn.lora_A.weight");
  const std::string further =
      WriteCheckpointOf(folder / "further", ModelOf("/hub/base", adapted), "h.0.attn.c_attn.lora_A.weight");
  const std::string whole = WriteCheckpointOf(folder / "whole", first, "wte.weight");

  EXPECT_EQ(BaseOfAdapters(ModelOf("/hub/base", further)), "/hub/base");
  EXPECT_EQ(BaseOfAdapters(ModelOf("/hub/base", whole)), whole);
}

// Regression: a model that was trained with the tokenizer of another folder was exported with that of its own folder.
TEST(ExportSources, TheTokenizerIsThatOfTheData_ElseThatOfTheModel) {
  v1::Train train;
  EXPECT_EQ(TokenizerToExport(train), "");
  train.mutable_model()->set_path("/hub/base");
  EXPECT_EQ(TokenizerToExport(train), "/hub/base");
  train.mutable_data()->set_tokenizer_path("/hub/instruct");
  EXPECT_EQ(TokenizerToExport(train), "/hub/instruct");
}

// Regression: a model that was trained on bytes was exported with the tokenizer of the folder of its weights.
TEST(ExportSources, AModelThatWasTrainedOnBytesGetsNoTokenizerOfItsFolder) {
  v1::Train train;
  train.mutable_model()->set_path("/hub/base");
  train.mutable_data()->set_tokenizer(v1::TOKENIZER_BYTES);
  EXPECT_EQ(TokenizerToExport(train), "");
  train.mutable_data()->mutable_fields()->set_input_ids("ids");
  EXPECT_EQ(TokenizerToExport(train), "/hub/base") << "a resolved job names bytes also if its data are tokens";
}

}  // namespace
}  // namespace trainyard::client
