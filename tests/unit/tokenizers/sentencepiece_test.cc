// Tokenizers that are read from a tokenizer.model. tests/interop/sentencepiece_test.py checks that the ids are those of
// the Python library.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/hash.h"
#include "tests/unit/temporary_folder.h"
#include "tokenizers/open_tokenizer.h"
#include "tokenizers/sentencepiece_loader.h"
#include "tokenizers/sentencepiece_model.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";

std::string Field(uint32_t field, absl::string_view bytes) {
  std::string text(1, static_cast<char>(field << 3 | 2));
  for (size_t size = bytes.size(); text.size() < 2 || size > 0; size >>= 7) {
    text += static_cast<char>((size & 0x7F) | (size > 0x7F ? 0x80 : 0));
  }
  return absl::StrCat(text, bytes);
}

std::string Number(uint32_t field, uint64_t value) {
  std::string text = field < 16
                         ? std::string(1, static_cast<char>(field << 3))
                         : std::string{static_cast<char>((field << 3 & 0x7F) | 0x80), static_cast<char>(field >> 4)};
  return text + static_cast<char>(value);  // below 128
}

std::string Piece(absl::string_view text, float score, uint64_t type = 1) {
  std::string bytes(1, static_cast<char>(2 << 3 | 5));
  for (uint32_t bits = absl::bit_cast<uint32_t>(score), i = 0; i < 4; ++i, bits >>= 8) bytes += static_cast<char>(bits);
  return Field(1, absl::StrCat(Field(1, text), bytes, Number(3, type)));
}

// A BPE model with byte fallback, like Llama's: ids 0 to 2 are special, then come 256 bytes, then `pieces`.
std::string Model(const std::string& pieces = "") {
  std::string file = absl::StrCat(Piece("<unk>", 0, 2), Piece("<s>", 0, 3), Piece("</s>", 0, 3));
  for (int byte = 0; byte < 256; ++byte) absl::StrAppend(&file, Piece(absl::StrFormat("<0x%02X>", byte), 0, 6));
  for (const char* letter : {"a", "b"}) absl::StrAppend(&file, Piece(letter, -9));
  absl::StrAppend(&file, Piece(kSpaceMark, -10), Piece("ab", -1), Piece(absl::StrCat(kSpaceMark, "a"), -2), pieces);
  absl::StrAppend(&file, Field(2, absl::StrCat(Number(3, 2), Number(35, 1))));
  return absl::StrCat(file, Field(3, absl::StrCat(Field(1, "identity"), Number(4, 0))));
}
constexpr int32_t kA = 259, kB = 260, kMark = 261, kAb = 262, kMarkA = 263;

std::string RefusalOfModel(const std::string& file) {
  return std::string(ReadSentencePieceModel(file, "tokenizer.model").status().message());
}

class SentencePiece : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Tokenizer>> Open(const std::string& model, const std::string& config = "") {
    EXPECT_TRUE(WriteFileAtomically(folder_ / "tokenizer.model", model).ok());
    if (!config.empty()) {
      EXPECT_TRUE(WriteFileAtomically(folder_ / "tokenizer_config.json", config).ok());
    }
    return OpenTokenizer(folder_.path());
  }
  std::string OpenError(const std::string& model, const std::string& config = "") {
    return std::string(Open(model, config).status().message());
  }

  TemporaryFolder folder_;
};

TEST_F(SentencePiece, AModelAloneHasNoTemplateAndFindsNoSpecialTokens) {
  auto tokenizer = *Open(Model());

  EXPECT_THAT(*tokenizer->Encode("ab a"), ElementsAre(kMark, kAb, kMarkA));
  EXPECT_THAT(*tokenizer->Encode("ab a", {.special_tokens = true}), ElementsAre(kMark, kAb, kMarkA));
  EXPECT_THAT(*tokenizer->Encode("a\n"), ElementsAre(kMarkA, 3 + '\n'));
  EXPECT_THAT(*tokenizer->Encode("<s>"), ElementsAre(kMark, 3 + '<', 3 + 's', 3 + '>'));
  EXPECT_EQ(tokenizer->Decode({1, kMark, kAb, kMarkA, -1, 9999}), "ab a");
  EXPECT_EQ(tokenizer->special().begin, 1);
  EXPECT_EQ(tokenizer->special().end, 2);
  EXPECT_EQ(tokenizer->special().padding, -1);
  EXPECT_EQ(tokenizer->vocabulary(), 264);
  EXPECT_EQ(tokenizer->kind(), "SentencePiece");
}

TEST_F(SentencePiece, ATextThatContinuesGetsNoSpaceBeforeIt) {
  auto tokenizer = *Open(Model());

  EXPECT_THAT(*tokenizer->Encode("ab", {.continues = true}), ElementsAre(kAb));
  EXPECT_THAT(*tokenizer->Encode(" ab", {.continues = true}), ElementsAre(kMark, kAb));
  EXPECT_EQ(tokenizer->NextSafeCut("ab ab", 0), 2);
  EXPECT_EQ(tokenizer->NextSafeCut("ab  ab", 2), 6) << "two spaces may be one token";
}

TEST_F(SentencePiece, PiecesThatJoinAcrossSpacesForbidCuts) {
  auto tokenizer = *Open(Model(Piece(absl::StrCat("a", kSpaceMark), -3)));

  EXPECT_EQ(tokenizer->NextSafeCut("ab ab ab", 0), 8);
}

TEST_F(SentencePiece, AFolderOfTransformersHasATemplateAndFindsSpecialTokens) {
  auto tokenizer = *Open(Model(), R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "pad_token": "<pad>",
      "added_tokens_decoder": {"264": {"content": "<pad>", "special": true}}})");

  EXPECT_THAT(*tokenizer->Encode("ab</s>a<pad>", {.special_tokens = true}), ElementsAre(1, kMark, kAb, 2, kA, 264));
  EXPECT_EQ(tokenizer->Decode({1, kMark, kAb, 264}, /*skip_special=*/true), "ab");
  EXPECT_EQ(tokenizer->special().padding, 264);
  EXPECT_EQ(tokenizer->vocabulary(), 265);
  const std::string hash = tokenizer->hash();
  EXPECT_NE(hash, (*Open(Model(), R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})"))->hash());
}

TEST_F(SentencePiece, AFolderThatNeedsMoreThanWeHaveIsRefusedWithEveryReason) {
  EXPECT_THAT(OpenError(Model(), R"({"tokenizer_class": "XLMRobertaTokenizer"})"),
              AllOf(HasSubstr("tokenizer_class: expected LlamaTokenizer, found 'XLMRobertaTokenizer'"),
                    HasSubstr("save_pretrained")));
  EXPECT_THAT(OpenError(Model(), R"({"tokenizer_class": "LlamaTokenizer", "pad_token": "<pad>",
                  "add_bos_token": "yes", "added_tokens_decoder": {"5": {"content": "<x>"}}})"),
              AllOf(HasSubstr("'<x>' has the id 5, which is that of '<0x02>'"), HasSubstr("pad_token: '<pad>'"),
                    HasSubstr("add_bos_token: expected true or false")));
  const std::string unigram = absl::StrCat(Piece("<unk>", 0, 2), Piece("<s>", 0, 3), Piece("</s>", 0, 3), Piece("a", 0),
                                           Field(2, ""), Field(3, ""));
  EXPECT_THAT(OpenError(unigram, R"({"tokenizer_class": "LlamaTokenizer"})"),
              AllOf(HasSubstr("of the kind BPE"), HasSubstr("with byte fallback"), HasSubstr("keeps all spaces")));
}

TEST_F(SentencePiece, TextThatIsNotUtf8IsRefused) {
  auto tokenizer = *Open(Model());

  EXPECT_THAT(std::string(tokenizer->Encode("a\xFF").status().message()), HasSubstr("not valid UTF-8 at byte 1"));
}

TEST(SentencePieceModel, FilesThatAreNoModelsAreRefused) {
  for (const std::string& file :
       {std::string(), std::string("hello"), std::string(100, '\xFF'), std::string(100, '\0')}) {
    EXPECT_THAT(RefusalOfModel(file), HasSubstr("is neither a SentencePiece model nor a tokenizer.json"));
  }
  EXPECT_THAT(RefusalOfModel("IQ== 0\nIg== 1\n"), HasSubstr("in the form of tiktoken"));
}

TEST(SentencePieceModel, ACutOffFileIsRefused) {
  const std::string file = Model();

  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ReadSentencePieceModel(file.substr(0, size), "tokenizer.model").ok()) << size;
  }
}

TEST(SentencePieceModel, EveryProblemIsListed) {
  const std::string file = absl::StrCat(Piece("a", std::numeric_limits<float>::quiet_NaN()), Piece("a", 0, 9),
                                        Piece("", 0), Field(2, absl::StrCat(Number(3, 7), Number(35, 1))));

  EXPECT_THAT(RefusalOfModel(file),
              AllOf(HasSubstr("piece 0 has no finite score"), HasSubstr("piece 1 has the type 9"),
                    HasSubstr("piece 2 is empty"), HasSubstr("'a' occurs twice"), HasSubstr("the kind 7"),
                    HasSubstr("0 pieces for unknown text"), HasSubstr("0 pieces for single bytes: expected 256")));
}

// A table of characters: a trie of one block, whose root has the value `root`, and `texts` bytes of texts.
std::string Characters(uint32_t root, size_t texts) {
  std::string table("\x00\x04\x00\x00", 4);
  for (int i = 0; i < 4; ++i) table += static_cast<char>(root >> (8 * i));
  return table + std::string(1020 + texts, '\0');
}

TEST(SentencePieceModel, ATableOfCharactersThatLeadsOutsideIsRefused) {
  const auto refusal = [](const std::string& table) { return RefusalOfModel(Model() + Field(3, Field(2, table))); };

  EXPECT_EQ(refusal(Characters(0, 1)), "");
  EXPECT_THAT(refusal(Characters(0, 0)), HasSubstr("table of normalized characters is damaged"));
  EXPECT_THAT(refusal(Characters(300u << 10, 1)), HasSubstr("is damaged"));
  EXPECT_THAT(refusal("\xFF\xFF\xFF\xFF"), HasSubstr("is damaged"));
}

TEST(OpenSentencePiece, AMissingOrForeignLibraryIsRefusedWithAdvice) {
  TemporaryFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "lib.so", "no library").ok());

  EXPECT_THAT(std::string(OpenSentencePiece("/nowhere/lib.so").status().message()),
              AllOf(HasSubstr("/nowhere/lib.so does not exist"), HasSubstr("./dev build")));
  EXPECT_THAT(std::string(OpenSentencePiece(folder / "lib.so").status().message()),
              AllOf(HasSubstr("apt-get install libsentencepiece0"), HasSubstr("tokenizer.json")));
  EXPECT_THAT(std::string(OpenSentencePiece(DefaultSentencePiecePath(), 77).status().message()),
              HasSubstr("does not have interface 77"));
}

// Returns the path of the SentencePiece library that the plugin has loaded.
std::string LibraryOf(const SentencePieceApi& api) {
  std::string path;
  const auto take = [](void* to, const char* text, size_t size) { static_cast<std::string*>(to)->assign(text, size); };
  api.library(take, take, &path);
  return path;
}

TEST_F(SentencePiece, TheHashCoversTheLibrary) {
  auto api = OpenSentencePiece();
  ASSERT_TRUE(api.ok()) << api.status();
  const std::string path = LibraryOf(**api);
  auto library = ReadFile(path);
  ASSERT_TRUE(library.ok()) << library.status();

  EXPECT_THAT(path, HasSubstr("libsentencepiece.so"));
  EXPECT_EQ((*Open(Model()))->hash(), HashHex(absl::StrCat(HashHex(Model()), " ", HashHex(*library))));
}

}  // namespace
}  // namespace trainyard
