// Tokenizers that are read from a tokenizer.json. tests/interop/tokenizers_test.py checks that the ids are those of the
// Python library.
#include "tokenizers/bpe_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "tokenizers/open_tokenizer.h"
#include "tokenizers/tokenizer_json.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A file with the tokens a, b, c, ab, abc and " a", and `parts`, such as "normalizer": {...}.
std::string File(absl::string_view parts = "", absl::string_view model = "") {
  return absl::StrCat(R"({"version": "1.0", )", parts, parts.empty() ? "" : ", ",
                      R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, " ": 5, " a": 6},
                      "merges": ["a b", ["ab", "c"], [" ", "a"]])",
                      model.empty() ? "" : ", ", model, "}}");
}

absl::StatusOr<std::vector<int32_t>> Encode(const std::string& file, absl::string_view text,
                                            const EncodeOptions& options = {}) {
  absl::StatusOr<std::unique_ptr<BpeTokenizer>> tokenizer = ReadBpeTokenizer(file, "tokenizer.json");
  if (!tokenizer.ok()) return tokenizer.status();
  return (*tokenizer)->Encode(text, options);
}

std::string Refusal(const std::string& file) {
  return std::string(ReadBpeTokenizer(file, "tokenizer.json").status().message());
}

TEST(BpeFile, ThePairOfLowestRankIsMergedFirst) {
  EXPECT_THAT(*Encode(File(), "abc"), ElementsAre(4));
  EXPECT_THAT(*Encode(File(), " abc"), ElementsAre(5, 4));  // not " a", b, c
  EXPECT_THAT(*Encode(File(), " ac"), ElementsAre(6, 2));
}

TEST(BpeFile, LongWordsAreMergedLikeShortOnes) {
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 1000; ++i) {
    text += "abcaab";
    expected.insert(expected.end(), {4, 0, 3});
  }
  EXPECT_EQ(*Encode(File(), text), expected);
}

TEST(BpeFile, AnUnknownCharacterIsDroppedOrBecomesTheUnknownToken) {
  EXPECT_THAT(*Encode(File(), "axb"), ElementsAre(3));
  EXPECT_THAT(*Encode(File("", R"("unk_token": "c")"), "xxb"), ElementsAre(2, 2, 1));
  EXPECT_THAT(*Encode(File("", R"("unk_token": "c", "fuse_unk": true)"), "xxb"), ElementsAre(2, 1));
  EXPECT_THAT(Encode(File("", R"("unk_token": "?")"), "x").status().message(), HasSubstr("not in the vocabulary (x)"));
}

TEST(BpeFile, AddedTokensAreFoundBeforeWords) {
  const std::string file = File(R"("added_tokens": [{"id": 7, "content": "<x>", "special": true},
                                    {"id": 8, "content": "<xx>", "special": false}],
      "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<x>": {"id": "<x>", "ids": [7]}}})");
  auto tokenizer = *ReadBpeTokenizer(file, "tokenizer.json");

  EXPECT_THAT(*tokenizer->Encode("a<xx><x>b"), ElementsAre(0, 8, 7, 1));
  EXPECT_THAT(*tokenizer->Encode("a", {.special_tokens = true}), ElementsAre(7, 0));
  EXPECT_EQ(tokenizer->vocabulary(), 9);
  EXPECT_EQ(tokenizer->IdOf("<xx>"), 8);
  EXPECT_EQ(tokenizer->Decode({7, 0, 8, 99}), "<x> a <xx>");
  EXPECT_EQ(tokenizer->Decode({7, 0, 8}, /*skip_special=*/true), "a <xx>");
}

TEST(BpeFile, ATemplateWithATokenBeyondTheVocabularyIsRefused) {
  const auto file = [](int id) {
    return File(absl::StrCat(R"("added_tokens": [{"id": 7, "content": "<x>", "special": true}],
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<x>": {"id": "<x>", "ids": [)",
                             id, "]}}}"));
  };
  EXPECT_THAT(*Encode(file(7), "a", {.special_tokens = true}), ElementsAre(7, 0));
  EXPECT_THAT(Refusal(file(65543)),
              HasSubstr("post_processor: it puts a token with the id 65543 around a text, but the last token has the "
                        "id 7"));
}

TEST(BpeFile, TheSurroundingFilesNameSpecialTokensAndAddMore) {
  const BpeSurroundings around = {.begin = "a",
                                  .end = "<end>",
                                  .padding = "none",
                                  .unknown = "",
                                  .added = {{.content = "<end>", .id = 7, .special = true}}};
  auto tokenizer = *ReadBpeTokenizer(File(), "tokenizer.json", around);

  EXPECT_EQ(tokenizer->special().begin, 0);
  EXPECT_EQ(tokenizer->special().end, 7);
  EXPECT_EQ(tokenizer->special().padding, -1);
  EXPECT_NE(tokenizer->hash(), (*ReadBpeTokenizer(File(), "tokenizer.json"))->hash());
}

// Regression: the text of a special token that only tokenizer_config.json names was split like any other text.
TEST(BpeFile, SpecialTokensThatOnlyTheConfigurationNamesAreFound) {
  const TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.json", File()).ok());
  const auto plain = *OpenTokenizer(folder.path());
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer_config.json", R"({"add_bos_token": false, "pad_token": "<pad>",
      "image_token": "b", "additional_special_tokens": [{"content": "c", "rstrip": true}, 7, null]})")
                  .ok());

  const auto tokenizer = *OpenTokenizer(folder.path());

  EXPECT_THAT(*plain->Encode("abc "), ElementsAre(4, 5));
  EXPECT_THAT(*tokenizer->Encode("abc "), ElementsAre(0, 1, 2));
  EXPECT_EQ(tokenizer->Decode({0, 1, 2}, /*skip_special=*/true), "a");
  EXPECT_EQ(tokenizer->special().padding, -1);
  EXPECT_EQ(tokenizer->vocabulary(), 7) << "a name that the vocabulary lacks gets no id";
  EXPECT_NE(tokenizer->hash(), plain->hash());
}

// Regression: a configuration that could not be read counted as missing, so its special tokens were lost.
TEST(BpeFile, AConfigurationThatCannotBeUsed_IsAnErrorWithItsName) {
  const TemporaryFolder folder;
  const std::string config = folder / "tokenizer_config.json", map = folder / "special_tokens_map.json";
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.json", File()).ok());
  const auto error_of = [&folder] { return std::string(OpenTokenizer(folder.path()).status().message()); };
  EXPECT_EQ(error_of(), "") << "both files are optional";

  ASSERT_TRUE(WriteFileAtomically(config, R"({"eos_token": "<e)").ok());
  EXPECT_THAT(error_of(), HasSubstr("tokenizer_config.json is not a JSON object; copy it again"));
  ASSERT_TRUE(WriteFileAtomically(config, "").ok());
  EXPECT_THAT(error_of(), HasSubstr("tokenizer_config.json is not a JSON object but an empty file"));
  ASSERT_TRUE(WriteFileAtomically(config, "{}").ok());
  EXPECT_EQ(error_of(), "");

  std::filesystem::create_symlink("missing", map);
  EXPECT_THAT(error_of(), HasSubstr("cannot open " + map)) << "a link without a target";
  std::filesystem::remove(map);
  ASSERT_EQ(mkfifo(map.c_str(), 0600), 0);
  EXPECT_THAT(error_of(), HasSubstr("special_tokens_map.json is a FIFO"));
}

TEST(BpeFile, OurFileOfTheByteTokenizerReadsBack) {
  auto tokenizer = *ReadBpeTokenizer(ByteTokenizerJson(), "tokenizer.json");
  EXPECT_THAT(*tokenizer->Encode("A\n\u00e4"), ElementsAre(65, 10, 0xc3, 0xa4));
  EXPECT_EQ(tokenizer->Decode({65, 10, 0xc3}), "A\n\ufffd");
}

TEST(BpeFile, TextThatIsNotUtf8IsRefusedWithItsPosition) {
  const absl::Status status = Encode(File(), "ab\xff").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("not valid UTF-8 at byte 2"));
}

TEST(BpeFile, AllUnsupportedPartsAreNamedInOneRefusal) {
  const std::string refusal = Refusal(File(R"("normalizer": {"type": "Nmt"}, "decoder": {"type": "CTC"},
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "UnicodeScripts"},
          {"type": "Split", "pattern": {"Regex": "\\p{Han}+"}}]})",
                                           R"("dropout": 0.1)"));

  EXPECT_THAT(refusal, AllOf(HasSubstr("normalizer: the normalizer 'Nmt' is not supported"), HasSubstr("'CTC'"),
                             HasSubstr("pre_tokenizer.pretokenizers[0]: the pre-tokenizer 'UnicodeScripts'"),
                             HasSubstr("\\p{Han}"), HasSubstr("model.dropout"), HasSubstr("input_ids")));
}

TEST(BpeFile, PatternsThatPcre2WouldReadDifferentlyAreRefused) {
  for (const char* pattern : {"^a", "a$", "\\\\bx", "[a&&b]", "[a[b]]", "x{1,2}+", "x{,2}", "(?m:a)", "(a", "\\\\1",
                              "\\\\h", "(*UCP)a", "[a", "\\\\p{Lu"}) {
    const std::string file = File(absl::StrCat(R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": ")", pattern,
                                               R"("}, "behavior": "Isolated"})"));
    EXPECT_THAT(Refusal(file), HasSubstr("pattern")) << pattern;
  }
}

TEST(BpeFile, HostileFilesAreRefused) {
  const std::string nested(1'000'000, '[');
  for (const std::string& file :
       {std::string(), std::string("[]"), std::string("{"), std::string(R"({"model": 3})"), nested,
        std::string("{\"a\":\"\xff\"}"), File(R"("added_tokens": [{"id": 5000000000, "content": "<x>"}])"),
        File(R"("added_tokens": [{"id": 77, "content": "<x>"}])"), File(R"("added_tokens": [7])"),
        File(R"("normalizer": {"type": "Sequence", "normalizers": {"type": "Sequence"}})"),
        std::string(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"),
        std::string(R"({"model": {"type": "BPE", "vocab": {"a": 1, "b": 1}, "merges": []}})"),
        std::string(R"({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a b"]}})"),
        std::string(R"({"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a"]}})"),
        std::string(R"({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}})")}) {
    EXPECT_THAT(Refusal(file), Not("")) << file.substr(0, 100);
  }
}

TEST(BpeFile, SafeCutsAreLineEndsBetweenCharactersThatAreNoSpaces) {
  auto tokenizer = *ReadBpeTokenizer(File(R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false})"), "x");

  EXPECT_EQ(tokenizer->NextSafeCut("ab\ncd\n\ne\nf", 0), 3u);
  EXPECT_EQ(tokenizer->NextSafeCut("ab\ncd\n\ne\nf", 3), 9u);
  EXPECT_EQ(tokenizer->NextSafeCut("ab\n cd \nef\n", 0), 11u);
  auto unknown = *ReadBpeTokenizer(File(R"("normalizer": {"type": "Strip"})"), "x");
  EXPECT_EQ(unknown->NextSafeCut("ab\ncd", 0), 5u);
}

TEST(BpeFile, ThreadsShareATokenizer) {
  auto tokenizer = *ReadBpeTokenizer(File(), "tokenizer.json");
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (int& count : right) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) count += *tokenizer->Encode("abc ab") == std::vector<int32_t>({4, 5, 3});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(right, ElementsAre(100, 100, 100, 100));
}

}  // namespace
}  // namespace trainyard
