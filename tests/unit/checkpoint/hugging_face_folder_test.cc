// Export and import of model folders. tests/interop/transformers_test.py checks that the Python library agrees.
#include "checkpoint/hugging_face_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/foreign_weights.h"
#include "checkpoint/model_export.h"
#include "checkpoint/safetensors.h"
#include "models/hugging_face_config.h"
#include "models/model_description.h"
#include "models/model_part.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

const ModelSizes kSizes{.layers = 2, .heads = 2, .width = 4, .context = 8, .vocabulary = 256, .dropout = 0.1};

class HuggingFaceFolderTest : public testing::Test {
 protected:
  // Writes a checkpoint of parameters and moments in which all elements differ.
  std::unique_ptr<Checkpoint> Saved() {
    std::vector<TensorBytes> tensors;
    for (const char* role : {"parameter", "exp_avg"}) {
      for (const auto& [name, shape, initial, use, split] : DescribeModel(kSizes).ParametersInExportOrder()) {
        std::vector<float>& values = values_.emplace_back(*CountElements(shape));
        for (float& value : values) value = next_++;
        tensors.push_back({.name = name,
                           .role = role,
                           .dtype = "F32",
                           .shape = shape,
                           .bytes = {reinterpret_cast<const char*>(values.data()), values.size() * 4}});
      }
    }
    auto saved = WriteCheckpoint(folder_ / "run", SmallManifest(7), tensors, FileSystem::Real());
    EXPECT_TRUE(saved.ok()) << saved.status();
    return *Checkpoint::Open(saved->path);
  }
  void SetUp() override { ASSERT_TRUE(MakeFolders(folder_ / "run").ok()); }

  // Writes a folder as another program might have written it.
  void WriteForeign(std::vector<TensorInfo> infos, const std::string& data) {
    std::filesystem::remove_all(foreign_);
    ASSERT_TRUE(MakeFolders(foreign_).ok());
    ASSERT_TRUE(WriteFileAtomically(foreign_ + "/model.safetensors", SafetensorsHeader(infos, {}) + data).ok());
  }
  absl::StatusOr<SavedCheckpoint> Import(const std::string& from, const std::string& to) {
    return ImportModel(from, kSizes, folder_ / to, SmallManifest(5), FileSystem::Real());
  }

  const TemporaryFolder folder_;
  const std::string foreign_ = folder_ / "foreign";
  std::deque<std::vector<float>> values_;
  float next_ = 1;
};

TEST_F(HuggingFaceFolderTest, ExportThenImport_ReturnsTheWeightsWithZeroMoments) {
  std::unique_ptr<Checkpoint> before = Saved();

  ASSERT_TRUE(ExportModel(*before, kSizes, folder_ / "out", FileSystem::Real()).ok());
  auto sizes = ReadModelConfig(folder_ / "out");
  auto imported = Import(folder_ / "out", "again");

  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->heads, 2);
  EXPECT_EQ(sizes->dropout, 0.1);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->path, folder_ / "again/step-00000000");
  auto after = Checkpoint::Open(imported->path);
  ASSERT_TRUE(after.ok()) << after.status();
  for (const auto& [name, shape, initial, use, split] : DescribeModel(kSizes).ParametersInExportOrder()) {
    const uint64_t bytes = *CountElements(shape) * 4;
    std::string expected(bytes, '\0'), found(bytes, '\0'), moment(bytes, 'x');
    ASSERT_TRUE(before->ReadTensor("parameter", name, "F32", shape, absl::MakeSpan(expected.data(), bytes)).ok());
    ASSERT_TRUE((*after)->ReadTensor("parameter", name, "F32", shape, absl::MakeSpan(found.data(), bytes)).ok());
    ASSERT_TRUE((*after)->ReadTensor("exp_avg_sq", name, "F32", shape, absl::MakeSpan(moment.data(), bytes)).ok());
    EXPECT_EQ(found, expected) << name;
    EXPECT_EQ(moment, std::string(bytes, '\0')) << name;
  }
  EXPECT_TRUE(absl::IsAlreadyExists(Import(folder_ / "out", "again").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(ExportModel(*before, kSizes, folder_ / "out", FileSystem::Real())));
}

// A tensor rank has three boxes of the fused matrix of queries, keys and values.
TEST_F(HuggingFaceFolderTest, ATensorRank_ReadsAnyRangeOfItsBoxes) {
  std::unique_ptr<Checkpoint> before = Saved();
  ASSERT_TRUE(ExportModel(*before, kSizes, folder_ / "out", FileSystem::Real()).ok());
  const ModelDescription model = DescribeModel(kSizes);
  auto weights = ForeignWeights::Open(folder_ / "out", model);
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (int rank = 0; rank < 2; ++rank) {
    auto part = PartOfRank(kSizes, {.tensor_rank = rank, .tensor_size = 2});
    ASSERT_TRUE(part.ok()) << part.status();
    for (const PartParameter& parameter : DescribePart(model, *part).parameters) {
      const Box box{.start = parameter.start, .size = parameter.shape};
      const uint64_t elements = static_cast<uint64_t>(CountIn(box)), first = elements / 3, count = elements / 2;
      std::string expected(elements * 4, '\0'), found(count * 4, '\0');
      ASSERT_TRUE(
          before->ReadBox("parameter", parameter.name, box, absl::MakeSpan(expected.data(), expected.size())).ok());

      absl::Status read = (*weights)->ReadBoxRange(parameter.name, box, first, count, "F32",
                                                   absl::MakeSpan(found.data(), found.size()));

      ASSERT_TRUE(read.ok()) << read;
      EXPECT_EQ(found, expected.substr(first * 4, count * 4)) << parameter.name;
      EXPECT_TRUE(absl::IsOutOfRange((*weights)->ReadBoxRange(parameter.name, box, elements - count + 1, count, "F32",
                                                              absl::MakeSpan(found.data(), found.size()))));
    }
  }
}

TEST_F(HuggingFaceFolderTest, Export_WritesExactlyTheseBytes) {
  ASSERT_TRUE(ExportModel(*Saved(), kSizes, folder_ / "out", FileSystem::Real()).ok());

  const std::map<std::string, std::string> hashes = {{"README.md", "6701b42e2788bba45530ade44f4e4af1"},
                                                     {"config.json", "3473fb7deb1433aba9448c2a7f581ac6"},
                                                     {"generation_config.json", "766641d0a571d5e191e81c93eb7f8e8e"},
                                                     {"model.safetensors", "d90a3f14b23621c4724a7ead02a548aa"},
                                                     {"tokenizer.json", "b6c8948a47d2c7de5431ddba86472108"},
                                                     {"tokenizer_config.json", "a81668c9a3f1917c7a97b6d7255415d9"}};
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out")) {
    found[entry.path().filename()] = HashHex(*ReadFile(entry.path()));
  }
  EXPECT_EQ(found, hashes);
}

TEST_F(HuggingFaceFolderTest, ShardedExportOfBf16_IsImportedAgain) {
  std::unique_ptr<Checkpoint> before = Saved();
  const std::string source = folder_ / "source";
  ASSERT_TRUE(MakeFolders(source).ok());
  ASSERT_TRUE(WriteFileAtomically(source + "/tokenizer.json", "{}").ok());
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(HuggingFaceConfig(kSizes, "F32"));
  config["torch_dtype"] = "float32";
  config["eos_token_id"] = 7;

  const absl::Status exported =
      ExportModel(*before, kSizes, folder_ / "out", FileSystem::Real(),
                  {.max_shard_bytes = 1000, .dtype = "BF16", .source_config = config.dump(), .tokenizer = source});

  ASSERT_TRUE(exported.ok()) << exported;
  EXPECT_FALSE(FileExists(folder_ / "out/model.safetensors"));
  EXPECT_EQ(*ReadFile(folder_ / "out/tokenizer.json"), "{}");
  const auto written = nlohmann::json::parse(*ReadFile(folder_ / "out/config.json"));
  EXPECT_EQ(written["dtype"], "bfloat16");
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_EQ(written["eos_token_id"], 7);
  // Regression: this file hid the end token: if it exists, transformers does not read the end token in config.json.
  EXPECT_FALSE(FileExists(folder_ / "out/generation_config.json"));
  const auto index = nlohmann::json::parse(*ReadFile(folder_ / "out/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_parameters"], CountParameters(kSizes));
  EXPECT_EQ(index["metadata"]["total_size"], 2 * CountParameters(kSizes));
  EXPECT_EQ(index["weight_map"]["transformer.wte.weight"], "model-00001-of-00003.safetensors");
  // wte alone is larger than the limit, so it has a file of its own.
  EXPECT_EQ((*SafetensorsFile::Open(folder_ / "out/model-00001-of-00003.safetensors"))->tensors().size(), 1u);
  auto imported = Import(folder_ / "out", "again");
  ASSERT_TRUE(imported.ok()) << imported.status();
  std::string expected(256 * 4 * 4, '\0'), found(256 * 4 * 4, '\0');
  const absl::Span<char> into(found.data(), found.size());
  ASSERT_TRUE(
      before->ReadTensor("parameter", "wte.weight", "F32", {256, 4}, absl::MakeSpan(expected.data(), 4096)).ok());
  ASSERT_TRUE((*Checkpoint::Open(imported->path))->ReadTensor("parameter", "wte.weight", "F32", {256, 4}, into).ok());
  EXPECT_EQ(found, ConvertValues(ConvertValues(expected, "F32", "BF16"), "BF16", "F32"));
}

TEST_F(HuggingFaceFolderTest, TokenizerAndTemplateOfAnotherFolder_AreExportedInsteadOfThoseOfTheModel) {
  const std::string model = folder_ / "model", other = folder_ / "other";
  for (const std::string& folder : {model, other}) {
    ASSERT_TRUE(MakeFolders(folder).ok());
    for (const char* name : {"generation_config.json", "bpe.json", "tokenizer_config.json", "chat_template.jinja"}) {
      ASSERT_TRUE(WriteFileAtomically(JoinPath(folder, name), "{\"model\": {}, \"in\": \"" + folder + "\"}").ok());
    }
  }

  const absl::Status exported =
      ExportModel(*Saved(), kSizes, folder_ / "out", FileSystem::Real(),
                  {.source_folder = model, .tokenizer = other + "/bpe.json", .chat_template = "{{ messages }}"});

  ASSERT_TRUE(exported.ok()) << exported;
  EXPECT_THAT(*ReadFile(folder_ / "out/generation_config.json"), HasSubstr(model));
  EXPECT_THAT(*ReadFile(folder_ / "out/tokenizer.json"), HasSubstr(other));
  EXPECT_THAT(*ReadFile(folder_ / "out/tokenizer_config.json"), HasSubstr(other));
  EXPECT_EQ(*ReadFile(folder_ / "out/chat_template.jinja"), "{{ messages }}");
}

// A checkpoint that another user made could name any file of the exporting user, and the export would contain the file.
TEST_F(HuggingFaceFolderTest, FileThatIsNoTokenizer_IsNotExported) {
  const std::unique_ptr<Checkpoint> checkpoint = Saved();
  for (const char* text : {"{\"auths\": {}}", "-----BEGIN OPENSSH PRIVATE KEY-----\n"}) {
    ASSERT_TRUE(WriteFileAtomically(folder_ / "secret", text).ok());

    const absl::Status refused =
        ExportModel(*checkpoint, kSizes, folder_ / "out", FileSystem::Real(), {.tokenizer = folder_ / "secret"});

    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_FALSE(FileExists(folder_ / "out"));
  }
}

TEST_F(HuggingFaceFolderTest, ExportWithAnInvalidOption_NamesOnlyThatOption) {
  const std::unique_ptr<Checkpoint> checkpoint = Saved();

  const absl::Status no_bytes =
      ExportModel(*checkpoint, kSizes, folder_ / "out", FileSystem::Real(), {.max_shard_bytes = 0});
  const absl::Status integers = ExportModel(*checkpoint, kSizes, folder_ / "out", FileSystem::Real(), {.dtype = "I8"});

  EXPECT_EQ(no_bytes.message(), "the limit on the bytes of an exported file is 0; expected 1 or more");
  EXPECT_EQ(integers.message(), "cannot export weights of type 'I8'; expected F64, F32, F16 or BF16");
  EXPECT_FALSE(FileExists(folder_ / "out"));
}

TEST_F(HuggingFaceFolderTest, LinkOfAnotherUserToAPrivateFile_IsNotExported) {
  const std::string theirs = folder_ / "theirs", link = JoinPath(theirs, "tokenizer_config.json");
  ASSERT_TRUE(MakeFolders(theirs).ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "secret", "{\"auths\": {}}").ok());
  std::filesystem::create_symlink(folder_ / "secret", link);
  if (lchown(link.c_str(), 65533, 65533) != 0) return;  // only root can change the owner of a file

  const absl::Status refused =
      ExportModel(*Saved(), kSizes, folder_ / "out", FileSystem::Real(), {.tokenizer = theirs});

  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_FALSE(FileExists(folder_ / "out"));
}

TEST_F(HuggingFaceFolderTest, FailedExport_LeavesNothing) {
  std::unique_ptr<Checkpoint> checkpoint = Saved();
  FullDisk disk(5000);
  ModelSizes wider = kSizes;
  wider.layers = 3;

  EXPECT_TRUE(absl::IsResourceExhausted(ExportModel(*checkpoint, kSizes, folder_ / "out", disk)));
  absl::Status other = ExportModel(*checkpoint, wider, folder_ / "out", FileSystem::Real());

  EXPECT_TRUE(absl::IsFailedPrecondition(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("missing: h.2.ln_1.weight"));
  EXPECT_FALSE(FileExists(folder_ / "out"));
  EXPECT_FALSE(FileExists(folder_ / "out.partial"));
}

// Regression: the folder was written with infinite weights, and the command reported success.
TEST_F(HuggingFaceFolderTest, ATypeThatCannotStoreAWeight_IsRefusedAndLeavesNothing) {
  next_ = 65'000;
  const std::unique_ptr<Checkpoint> checkpoint = Saved();

  const absl::Status refused = ExportModel(*checkpoint, kSizes, folder_ / "out", FileSystem::Real(), {.dtype = "F16"});

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("wte.weight has the value 65520, which the type F16"));
  EXPECT_FALSE(FileExists(folder_ / "out"));
  EXPECT_FALSE(FileExists(folder_ / "out.partial"));
  EXPECT_TRUE(ExportModel(*checkpoint, kSizes, folder_ / "out", FileSystem::Real(), {.dtype = "BF16"}).ok());
}

TEST_F(HuggingFaceFolderTest, FolderThatAppearsDuringTheExport_IsNotRemoved) {
  RivalDisk disk;

  const absl::Status exported = ExportModel(*Saved(), kSizes, folder_ / "out", disk);

  EXPECT_TRUE(exported.ok()) << exported;
  EXPECT_TRUE(FileExists(folder_ / "out/model.safetensors"));
  EXPECT_TRUE(FileExists(folder_ / "out.partial/mine.txt"));
}

TEST_F(HuggingFaceFolderTest, Import_OfOtherWeights_NamesEveryDifference) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, shape, initial, use, split] : DescribeModel(kSizes).ParametersInExportOrder()) {
    if (name == "h.1.mlp.c_fc.bias" || name == "ln_f.weight") continue;
    infos.push_back({.name = name, .dtype = "F32", .shape = shape});
    if (name == "h.0.attn.c_attn.weight") infos.back().shape = {12, 4};
  }
  infos.push_back({.name = "h.0.attn.bias", .dtype = "F32", .shape = {1}});  // a mask in old files
  infos.push_back({.name = "h.0.crossattention.c_attn.weight", .dtype = "F32", .shape = {1}});
  uint64_t bytes = 0;
  for (const TensorInfo& info : infos) bytes += *CountElements(info.shape) * 4;
  WriteForeign(infos, std::string(bytes, '\0'));

  absl::Status status = Import(foreign_, "run").status();

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("missing: h.1.mlp.c_fc.bias, ln_f.weight; unexpected: h.0.crossattention.c_attn.weight; "
                        "wrong shape: h.0.attn.c_attn.weight is [12, 4], expected [4, 12]"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "run"));
}

TEST_F(HuggingFaceFolderTest, Import_OfSixteenBits_WidensExactlyAndRefusesAnUntiedHead) {
  for (const char* dtype : {"F16", "BF16"}) {
    std::vector<TensorInfo> infos;
    std::string data;
    for (const auto& [name, shape, initial, use, split] : DescribeModel(kSizes).ParametersInExportOrder()) {
      infos.push_back({.name = "transformer." + name, .dtype = dtype, .shape = shape});
      data += std::string(*CountElements(shape) * 2, '\0');
    }
    // wte.weight begins with 1.5, -0.25, and the smallest positive value.
    const bool half = dtype[0] == 'F';
    const uint16_t bits[] = {static_cast<uint16_t>(half ? 0x3E00 : 0x3FC0),
                             static_cast<uint16_t>(half ? 0xB400 : 0xBE80), 1};
    std::memcpy(data.data(), bits, sizeof bits);
    infos.push_back({.name = "lm_head.weight", .dtype = dtype, .shape = {256, 4}});
    const std::string tied = data + data.substr(0, 2048), untied = data + std::string(2048, '\x01');
    WriteForeign(infos, tied);

    auto imported = Import(foreign_, std::string("run-") + dtype);

    ASSERT_TRUE(imported.ok()) << imported.status();
    float values[1024];
    ASSERT_TRUE((*Checkpoint::Open(imported->path))
                    ->ReadTensor("parameter", "wte.weight", "F32", {256, 4},
                                 absl::MakeSpan(reinterpret_cast<char*>(values), sizeof values))
                    .ok());
    EXPECT_EQ(values[0], 1.5f);
    EXPECT_EQ(values[1], -0.25f);
    EXPECT_EQ(values[2], half ? 0x1p-24f : 0x1p-133f);
    WriteForeign(infos, untied);
    EXPECT_THAT(std::string(Import(foreign_, "run").status().message()), HasSubstr("lm_head.weight differs"));
  }
}

TEST_F(HuggingFaceFolderTest, Config_OfAnotherModel_IsRefusedWithEveryReason) {
  ASSERT_TRUE(ExportModel(*Saved(), kSizes, folder_ / "out", FileSystem::Real()).ok());
  const std::string path = folder_ / "out/config.json";
  std::string text = *ReadFile(path);
  ASSERT_TRUE(WriteFileAtomically(path, absl::StrReplaceAll(text, {{"gelu_new", "relu"},
                                                                   {"\"n_head\": 2", "\"n_head\": 3"},
                                                                   {"\"n_inner\": null", "\"n_inner\": 99"},
                                                                   {"\"n_positions\": 8", "\"n_positions\": -8"}}))
                  .ok());

  absl::Status status = ReadModelConfig(folder_ / "out").status();

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  for (const char* part :
       {"activation_function: expected \"gelu_new\", found \"relu\"", "n_inner: expected 16, found 99",
        "n_positions: expected a positive whole number, found -8", "n_head 3 does not divide n_embd 4"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  EXPECT_TRUE(absl::IsNotFound(ReadModelConfig(folder_ / "nowhere").status()));
}

}  // namespace
}  // namespace trainyard
