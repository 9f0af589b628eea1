#include "checkpoint/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/verify.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReshardTest : public ::testing::Test {
 protected:
  ReshardTest() {
    EXPECT_TRUE(MakeFolders(folder_ / "run").ok());
    auto saved = WriteCheckpoint(folder_ / "run", SmallManifest(7), state_.tensors(), FileSystem::Real());
    EXPECT_TRUE(saved.ok()) << saved.status();
    from_ = *Checkpoint::Open(saved->path);
  }
  std::unique_ptr<Checkpoint> Reshard(const ReshardOptions& options, const std::string& to) {
    auto saved = ReshardCheckpoint(*from_, options, folder_ / to, FileSystem::Real());
    EXPECT_TRUE(saved.ok()) << saved.status();
    auto verified = VerifyCheckpoint(saved->path, {});
    EXPECT_TRUE(verified.ok() && verified->problems.empty());
    EXPECT_EQ(verified->manifest_hash, saved->manifest_hash);
    EXPECT_EQ(verified->size_bytes, saved->size_bytes);
    return *Checkpoint::Open(saved->path);
  }
  // Expects that every tensor has the bits of the state.
  void ExpectSame(const Checkpoint& checkpoint) {
    ASSERT_EQ(checkpoint.manifest().tensors.size(), state_.tensors().size());
    for (const TensorBytes& tensor : state_.tensors()) {
      std::string bytes(tensor.bytes.size(), '\0');
      absl::Status read = checkpoint.ReadTensor(tensor.role, tensor.name, tensor.dtype, tensor.shape,
                                                absl::MakeSpan(bytes.data(), bytes.size()));
      ASSERT_TRUE(read.ok()) << read;
      EXPECT_EQ(bytes, tensor.bytes) << tensor.role << " " << tensor.name;
    }
  }
  std::vector<std::string> Files(const std::string& folder) { return *ListNames(folder_ / folder + "/step-00000007"); }

  TemporaryFolder folder_;
  SmallState state_{1};
  std::unique_ptr<Checkpoint> from_;
};

TEST_F(ReshardTest, ToAnyNumberOfRanksAndBack_HoldsTheSameBits) {
  for (uint64_t ranks : {1, 2, 3, 5, 7, 40}) {
    SCOPED_TRACE(ranks);
    const std::string name = absl::StrCat("to-", ranks);
    uint64_t written = 0;
    ReshardOptions options{.ranks = ranks, .on_bytes = [&](uint64_t bytes) { written += bytes; }};

    std::unique_ptr<Checkpoint> resharded = Reshard(options, name);

    ExpectSame(*resharded);
    EXPECT_EQ(Files(name).size(), ranks + 1);
    EXPECT_EQ(resharded->manifest().world_size, ranks);
    EXPECT_EQ(written, ReshardedBytes(from_->manifest(), options));
    auto again =
        ReshardCheckpoint(*resharded, {.ranks = 2}, folder_ / absl::StrCat("back-", ranks), FileSystem::Real());
    ASSERT_TRUE(again.ok()) << again.status();
    ExpectSame(**Checkpoint::Open(again->path));
    auto direct = ReshardCheckpoint(*from_, {.ranks = 2}, folder_ / absl::StrCat("direct-", ranks), FileSystem::Real());
    EXPECT_EQ(again->manifest_hash, direct->manifest_hash);
  }
}

TEST_F(ReshardTest, Full_HasOneFileOfWeightsAndOneOfTheOptimizer) {
  std::unique_ptr<Checkpoint> whole = Reshard({}, "whole");

  ExpectSame(*whole);
  EXPECT_THAT(Files("whole"), ElementsAre("manifest.json", "model.safetensors", "optimizer.safetensors"));
  auto weights = SafetensorsFile::Open(folder_ / "whole/step-00000007/model.safetensors");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->Bytes(*(*weights)->Find("wte.weight")), state_.Bytes("parameter", "wte.weight"));
}

TEST_F(ReshardTest, Dtype_RoundsTheWeightsAndNotTheOptimizer) {
  std::unique_ptr<Checkpoint> narrow = Reshard({.ranks = 2, .dtype = "BF16"}, "narrow");

  std::string bytes(24 * 2, '\0');
  ASSERT_TRUE(narrow->ReadTensor("parameter", "wte.weight", "BF16", {4, 6}, absl::MakeSpan(bytes.data(), 48)).ok());
  EXPECT_EQ(bytes, ConvertValues(state_.Bytes("parameter", "wte.weight"), "F32", "BF16"));
  std::string moments(24 * 4, '\0');
  ASSERT_TRUE(narrow->ReadTensor("exp_avg", "wte.weight", "F32", {4, 6}, absl::MakeSpan(moments.data(), 96)).ok());
  EXPECT_EQ(moments, state_.Bytes("exp_avg", "wte.weight"));
}

TEST_F(ReshardTest, ExistingCheckpoint_IsNotChanged) {
  Reshard({.ranks = 2}, "out");
  const std::string before = *ReadFile(folder_ / "out/step-00000007/manifest.json");

  absl::Status again = ReshardCheckpoint(*from_, {.ranks = 3}, folder_ / "out", FileSystem::Real()).status();

  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  EXPECT_EQ(*ReadFile(folder_ / "out/step-00000007/manifest.json"), before);
}

TEST_F(ReshardTest, FullDisk_IsReportedAndLeavesNothing) {
  FullDisk disk(500);

  absl::Status full = ReshardCheckpoint(*from_, {.ranks = 2}, folder_ / "out", disk).status();

  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("shard-0000"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "out"));
}

TEST_F(ReshardTest, OtherTypesAndTooManyRanks_AreRefused) {
  for (const ReshardOptions& options : {ReshardOptions{.ranks = 2, .dtype = "I32"}, ReshardOptions{.ranks = 100'001}}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(ReshardCheckpoint(*from_, options, folder_ / "out", FileSystem::Real()).status()));
    EXPECT_FALSE(FileExists(folder_ / "out"));
  }
}

// Regression: the checkpoint was written with infinite weights, and the command reported success.
TEST_F(ReshardTest, ATypeThatCannotStoreAWeight_IsRefusedAndLeavesNothing) {
  const std::vector<float> values = {1, -70'000};
  const absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  ASSERT_TRUE(MakeFolders(folder_ / "large").ok());
  auto saved = WriteCheckpoint(
      folder_ / "large", SmallManifest(9),
      {{.name = "ln_f.bias", .role = "parameter", .dtype = "F32", .shape = {2}, .bytes = bytes}}, FileSystem::Real());
  ASSERT_TRUE(saved.ok()) << saved.status();
  const std::unique_ptr<Checkpoint> large = *Checkpoint::Open(saved->path);

  const absl::Status refused =
      ReshardCheckpoint(*large, {.ranks = 1, .dtype = "F16"}, folder_ / "half", FileSystem::Real()).status();
  const absl::Status converted =
      ReshardCheckpoint(*large, {.ranks = 1, .dtype = "BF16"}, folder_ / "bfloat", FileSystem::Real()).status();

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ln_f.bias has the value -70000"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_ / "half"));
  EXPECT_TRUE(converted.ok()) << converted;
}

template <typename T>
std::string BytesOf(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

TEST(DtypeConvertTest, Halves_RoundToTheNearestAndTiesToEven) {
  struct Case {
    double value;
    uint16_t f16, bf16;
  };
  const double inf = std::numeric_limits<double>::infinity();
  const Case cases[] = {
      {0.0, 0x0000, 0x0000},
      {-0.0, 0x8000, 0x8000},
      {1.0, 0x3C00, 0x3F80},
      {-2.5, 0xC100, 0xC020},
      {1.0 + 0x1p-11, 0x3C00, 0x3F80},            // halfway: to even
      {1.0 + 3 * 0x1p-11, 0x3C02, 0x3F80},        // halfway: to even, upwards
      {1.0 + 0x1p-11 + 0x1p-40, 0x3C01, 0x3F80},  // a little above: no double rounding
      {1.0 + 0x1p-8, 0x3C04, 0x3F80},             // bf16 halfway
      {1.0 + 0x1p-8 + 0x1p-30, 0x3C04, 0x3F81},
      {65504.0, 0x7BFF, 0x4780},  // the largest of fp16
      {65519.0, 0x7BFF, 0x4780},
      {65520.0, 0x7C00, 0x4780},  // rounds to infinity in fp16
      {0x1p-24, 0x0001, 0x3380},  // the smallest of fp16
      {0x1p-25, 0x0000, 0x3300},  // halfway to 0: to even
      {0x1.8p-25, 0x0001, 0x3340},
      {0x1p-14 - 0x1p-25, 0x0400, 0x3880},  // rounds up to a normal value
      {inf, 0x7C00, 0x7F80},
      {-inf, 0xFC00, 0xFF80},
      {1e300, 0x7C00, 0x7F80},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(ConvertValues(BytesOf(c.value), "F64", "F16"), BytesOf(c.f16)) << "value " << c.value;
    EXPECT_EQ(ConvertValues(BytesOf(c.value), "F64", "BF16"), BytesOf(c.bf16)) << "value " << c.value;
  }
}

TEST(DtypeConvertTest, AFiniteValueThatBecomesInfinite_IsRefused) {
  const std::string fits = BytesOf(65519.0f), large = BytesOf(1.0f) + BytesOf(70'000.0f),
                    infinite = BytesOf(std::numeric_limits<float>::infinity());

  const absl::Status refused = ConvertWeights("wte.weight", large, "F32", "F16").status();

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "wte.weight has the value 70000, which the type F16 cannot store (its largest value is 65504); choose bf16 "
            "or fp32 for the weights, or keep their type F32");
  EXPECT_TRUE(ConvertWeights("wte.weight", large, "F32", "BF16").ok());
  EXPECT_TRUE(ConvertWeights("wte.weight", fits, "F32", "F16").ok());
  EXPECT_TRUE(ConvertWeights("wte.weight", infinite, "F32", "F16").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ConvertWeights("wte.weight", BytesOf(1e300), "F64", "F32").status()));
}

// Every value of a 16-bit type is exact in the wider types.
TEST(DtypeConvertTest, EveryHalf_RoundTrips) {
  for (const char* half : {"F16", "BF16"}) {
    for (const char* wide : {"F32", "F64"}) {
      for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
        const std::string bytes = BytesOf(static_cast<uint16_t>(bits));
        const std::string value = ConvertValues(bytes, half, "F64");
        double read = 0;
        std::memcpy(&read, value.data(), sizeof read);
        const std::string back = ConvertValues(ConvertValues(bytes, half, wide), wide, half);
        if (std::isnan(read)) {
          EXPECT_TRUE(HasNonfinite(half, back)) << half << " " << bits << " via " << wide;
        } else {
          ASSERT_EQ(back, bytes) << half << " " << bits << " via " << wide;
        }
      }
    }
  }
}

}  // namespace
}  // namespace trainyard
