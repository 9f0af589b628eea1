#include "checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

Manifest Sample() {
  Manifest manifest = SmallManifest(100);
  manifest.files = {{.name = "shard-00000.safetensors", .bytes = 128, .hash = std::string(32, 'a')}};
  ManifestPiece left{
      .file = "shard-00000.safetensors", .start = {0, 0}, .size = {4, 2}, .last_element = 8, .last_byte = 32};
  ManifestPiece right{.file = "shard-00000.safetensors",
                      .start = {0, 2},
                      .size = {4, 2},
                      .last_element = 3,
                      .first_byte = 32,
                      .last_byte = 44};
  ManifestPiece rest = right;
  rest.first_element = 3;
  rest.last_element = 8;
  rest.first_byte = 44;
  rest.last_byte = 64;
  manifest.tensors = {
      {.name = "w", .role = "parameter", .dtype = "F32", .shape = {4, 4}, .pieces = {left, right, rest}}};
  return manifest;
}

std::string ErrorOf(const Manifest& manifest) {
  return std::string(ParseManifest(ManifestText(manifest)).status().message());
}

TEST(ManifestTest, TextRoundTrip_KeepsEverything) {
  Manifest manifest = Sample();

  auto read = ParseManifest(ManifestText(manifest));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ManifestText(*read), ManifestText(manifest));
  EXPECT_EQ(read->spec, manifest.spec);
  EXPECT_EQ(read->bucket_order, manifest.bucket_order);
  EXPECT_EQ(read->data.consumed_samples, 800u);
  ASSERT_EQ(read->tensors.size(), 1u);
  EXPECT_EQ(read->tensors[0].pieces[2].first_element, 3u);
}

TEST(ManifestTest, Parse_OfTextWithAChangedByte_IsDataLoss) {
  std::string text = ManifestText(Sample());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);

    EXPECT_EQ(ParseManifest(damaged).status().code(), absl::StatusCode::kDataLoss) << "byte " << i;
  }
}

TEST(ManifestTest, Parse_OfTruncatedText_IsDataLoss) {
  std::string text = ManifestText(Sample());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(ParseManifest(text.substr(0, length)).status().code(), absl::StatusCode::kDataLoss)
        << "the first " << length << " bytes";
  }
}

TEST(ManifestTest, Parse_LaterVersion_IsUnimplementedWithAdvice) {
  std::string text = Rehash(absl::StrReplaceAll(ManifestText(Sample()), {{"\"version\": 4", "\"version\": 6"}}));

  absl::Status status = ParseManifest(text).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("newer trainyard"));
}

TEST(ManifestTest, KeysOfVersionTwo_AreReadAndNotRequiredInVersionOne) {
  Manifest manifest = Sample();
  const std::string plain = ManifestText(manifest);
  manifest.data.list = {{.path = "/data/a.txt", .bytes = 1000, .hash = std::string(32, 'b')}};
  manifest.nonfinite = {"parameter 'w'"};

  auto read = ParseManifest(ManifestText(manifest));
  auto version_one = ParseManifest(Rehash(absl::StrReplaceAll(
      plain, {{"\"version\": 4", "\"version\": 1"}, {",\n  \"list\": []", ""}, {"\n \"nonfinite\": [],", ""}})));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(ManifestText(*read), ManifestText(manifest));
  EXPECT_EQ(read->data.list[0].path, "/data/a.txt");
  EXPECT_EQ(read->nonfinite, manifest.nonfinite);
  ASSERT_TRUE(version_one.ok()) << version_one.status();
  EXPECT_EQ(version_one->step, 100u);
  EXPECT_FALSE(ParseManifest(Rehash(absl::StrReplaceAll(plain, {{"\n \"nonfinite\": [],", ""}}))).ok());
}

TEST(ManifestTest, Evaluation_IsReadFromVersionThreeOn) {
  Manifest manifest = Sample();
  const std::string plain = ManifestText(manifest);
  manifest.evaluation = {.loss = 2.25,
                         .tokens = 4096,
                         .data_hash = std::string(32, 'c'),
                         .best_loss = 0.1,
                         .best_step = 80,
                         .without_improvement = 2,
                         .lowest_saved = 1e-300};
  Manifest never_finite = Sample();
  never_finite.evaluation = {.tokens = 1, .without_improvement = 3};
  const std::string text = ManifestText(manifest);

  auto read = ParseManifest(text), short_one = ParseManifest(ManifestText(never_finite));
  auto version_two = ParseManifest(Rehash(absl::StrReplaceAll(plain, {{"\"version\": 4", "\"version\": 2"}})));

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->evaluation, manifest.evaluation);
  EXPECT_EQ(ManifestText(*read), text);
  ASSERT_TRUE(short_one.ok()) << short_one.status();
  EXPECT_EQ(short_one->evaluation, never_finite.evaluation);
  ASSERT_TRUE(version_two.ok()) << version_two.status();
  EXPECT_FALSE(version_two->evaluation.has_value());
  EXPECT_FALSE(ParseManifest(Rehash(absl::StrReplaceAll(text, {{"\"version\": 4", "\"version\": 2"}}))).ok());
  EXPECT_FALSE(ParseManifest(Rehash(absl::StrReplaceAll(text, {{"\"best_step\"", "\"best\""}}))).ok());
}

TEST(ManifestTest, TheDataOfAnEvaluation_IsReadFromVersionFourOn) {
  Manifest manifest = Sample();
  manifest.evaluation = {.loss = 2.25, .tokens = 4096};
  const auto as_version_three = [](const Manifest& of) {
    return ParseManifest(Rehash(absl::StrReplaceAll(ManifestText(of), {{"\"version\": 4", "\"version\": 3"}})));
  };

  auto version_three = as_version_three(manifest);
  ASSERT_TRUE(version_three.ok()) << version_three.status();
  EXPECT_EQ(version_three->evaluation, manifest.evaluation);
  manifest.evaluation->data_hash = std::string(32, 'c');
  EXPECT_FALSE(as_version_three(manifest).ok());
}

TEST(ManifestTest, NumbersOfSamples_MakeVersionFive_WhichOtherManifestsAreNot) {
  Manifest manifest = Sample();
  const std::string without = ManifestText(manifest);
  manifest.data.samples = {1000, 0, 24};
  const std::string with = ManifestText(manifest);

  auto read = ParseManifest(with);

  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->data.samples, manifest.data.samples);
  EXPECT_EQ(ManifestText(*read), with);
  EXPECT_THAT(with, HasSubstr("\"version\": 5"));
  EXPECT_THAT(without, HasSubstr("\"version\": 4")) << "older programs can read a manifest without them";
  EXPECT_FALSE(ParseManifest(Rehash(absl::StrReplaceAll(with, {{"\"version\": 5", "\"version\": 4"}}))).ok());
}

TEST(ManifestTest, Parse_UnknownOrMissingKey_IsRefusedByName) {
  std::string unknown_key =
      Rehash(absl::StrReplaceAll(ManifestText(Sample()), {{"\"step\": 100", "\"step\": 100,\n \"more\": 1"}}));
  std::string missing_key = Rehash(absl::StrReplaceAll(ManifestText(Sample()), {{"\"step\": 100", "\"stop\": 100"}}));

  EXPECT_THAT(std::string(ParseManifest(unknown_key).status().message()), HasSubstr("does not know"));
  EXPECT_THAT(std::string(ParseManifest(missing_key).status().message()), HasSubstr("'step'"));
}

TEST(ManifestTest, Parse_SpecWithAnotherDigest_IsDataLoss) {
  Manifest manifest = Sample();
  manifest.spec_digest = HashHex("another");

  EXPECT_THAT(ErrorOf(manifest), HasSubstr("digest"));
}

TEST(ManifestTest, Parse_InvalidPieces_AreNamed) {
  Manifest outside = Sample(), overlap = Sample(), hole = Sample(), bytes = Sample(), file = Sample(), range = Sample();
  outside.tensors[0].pieces[0].start = {0, 3};
  overlap.tensors[0].pieces[0].start = {0, 1};
  hole.tensors[0].pieces.pop_back();
  bytes.tensors[0].pieces[0].last_byte = 36;
  file.tensors[0].pieces[0].file = "other.safetensors";
  range.tensors[0].pieces[2].first_element = 2;
  range.tensors[0].pieces[2].first_byte = 40;

  EXPECT_THAT(ErrorOf(outside), HasSubstr("is not within [4, 4]"));
  EXPECT_THAT(ErrorOf(overlap), HasSubstr("overlap"));
  EXPECT_THAT(ErrorOf(hole), HasSubstr("has 16 elements, but its pieces hold 11"));
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("expected a range of 32 bytes"));
  EXPECT_THAT(ErrorOf(file), HasSubstr("does not list that file"));
  EXPECT_THAT(ErrorOf(range), HasSubstr("overlap"));
}

// 2^61 elements of 8 bytes are 0 bytes modulo 2^64, as many as the piece has.
TEST(ManifestTest, Parse_MoreElementsThanBytesCanBeCounted_IsDataLoss) {
  Manifest manifest = Sample();
  const int64_t rows = int64_t{1} << 31, columns = int64_t{1} << 30;
  manifest.tensors = {{.name = "w", .role = "parameter", .dtype = "F64", .shape = {rows, columns}}};
  manifest.tensors[0].pieces = {
      {.file = "shard-00000.safetensors", .start = {0, 0}, .size = {rows, columns}, .last_element = uint64_t{1} << 61}};

  absl::Status status = ParseManifest(ManifestText(manifest)).status();

  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("parameter 'w': shape [2147483648, 1073741824] has too many"));
}

TEST(ManifestTest, Parse_FileNamesThatLeaveTheFolder_AreRefused) {
  for (const char* name : {"../x", "a/b", "", ".", ".."}) {
    Manifest manifest = Sample();
    manifest.files.push_back({.name = name});

    EXPECT_THAT(ErrorOf(manifest), HasSubstr("not the name of a file")) << name;
  }
}

}  // namespace
}  // namespace trainyard
