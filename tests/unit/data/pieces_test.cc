// Tokenizes text with a tokenizer that is read from a file: the tokens at the beginning and end of documents, and the
// pieces of a long file.
#include "worker/data/pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/data/small_tokenizer.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class PiecesTest : public testing::Test {
 protected:
  PiecesTest() {
    WriteSmallTokenizer(temporary_.path());
    encoder_ = *OpenTextEncoder(temporary_.path());
  }

  std::unique_ptr<Corpus> CorpusOf(const std::string& text) {
    std::ofstream(temporary_ / "text.txt") << text;
    return *Corpus::Open({.paths = {temporary_ / "text.txt"}});
  }

  std::vector<int64_t> TokensOf(const Corpus& corpus, const std::vector<DataPiece>& pieces) {
    std::vector<int64_t> tokens;
    for (const DataPiece& piece : pieces) {
      const TokenizedPiece made = TokenizeText(corpus, piece, {.vocabulary = SmallTokenizer::kVocabulary}, *encoder_);
      EXPECT_EQ(made.num_problems, 0);
      std::vector<uint64_t> aligned((made.chunk.size() + 7) / 8);
      std::memcpy(aligned.data(), made.chunk.data(), made.chunk.size());
      const TokenChunk chunk = *TokenChunk::Parse({reinterpret_cast<const char*>(aligned.data()), made.chunk.size()});
      const size_t before = tokens.size();
      tokens.resize(before + static_cast<size_t>(chunk.num_tokens()));
      chunk.Read(0, absl::MakeSpan(tokens).subspan(before));
    }
    return tokens;
  }

  const TemporaryFolder temporary_;
  std::unique_ptr<TextEncoder> encoder_;
};

TEST_F(PiecesTest, ADocument_HasTheTokensOfTheTemplate_AndOneEndToken) {
  std::vector<int64_t> tokens;
  ASSERT_TRUE(encoder_->Append("the", /*begins=*/true, tokens).ok());
  ASSERT_TRUE(encoder_->Append("the<end>", /*begins=*/false, tokens).ok());
  encoder_->End(tokens);

  EXPECT_THAT(tokens,
              ElementsAre(SmallTokenizer::kBegin, SmallTokenizer::kThe, SmallTokenizer::kThe, SmallTokenizer::kEnd));
}

TEST_F(PiecesTest, ATokenizerWithoutCommonLetters_KeepsItsTemplate) {
  const TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json") << R"({"version": "1.0",
      "added_tokens": [{"id": 2, "content": "<begin>", "special": true},
                       {"id": 3, "content": "<end>", "special": true}],
      "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<begin>", "type_id": 0}},
          {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<begin>": {"id": "<begin>", "ids": [2]}}},
      "model": {"type": "BPE", "vocab": {"G": 0, "T": 1}, "merges": []}})";
  std::ofstream(folder / "tokenizer_config.json") << R"({"eos_token": "<end>"})";
  const auto encoder = OpenTextEncoder(folder.path());
  ASSERT_TRUE(encoder.ok()) << encoder.status();

  std::vector<int64_t> tokens;
  ASSERT_TRUE((*encoder)->Append("GT", /*begins=*/true, tokens).ok());
  (*encoder)->End(tokens);

  EXPECT_THAT(tokens, ElementsAre(2, 0, 1, 3));
}

TEST_F(PiecesTest, TheTokensOfPieces_AreThoseOfTheWholeText) {
  std::string text;
  for (int i = 0; i < 3000; ++i) absl::StrAppend(&text, "the na\u00efve line ", i, i % 5 == 0 ? " \n\n" : "\n");
  const std::unique_ptr<Corpus> corpus = CorpusOf(text);
  const std::vector<DataPiece> pieces = CutText(*corpus, *encoder_, 1000), whole = CutText(*corpus, *encoder_);
  ASSERT_THAT(whole, SizeIs(1));
  ASSERT_GT(pieces.size(), 40u);
  for (size_t i = 1; i < pieces.size(); ++i) EXPECT_EQ(pieces[i].begin, pieces[i - 1].end);

  EXPECT_EQ(TokensOf(*corpus, pieces), TokensOf(*corpus, whole));
}

TEST_F(PiecesTest, TextThatIsNotUtf8_IsReportedWithItsLine_WhereverTheTextIsCut) {
  std::string text;
  for (int i = 0; i < 300; ++i) absl::StrAppend(&text, i == 250 ? "bad \xff\n" : "the line\n");
  const std::unique_ptr<Corpus> corpus = CorpusOf(text);
  std::vector<std::string> sentences;
  for (const DataPiece& piece : CutText(*corpus, *encoder_, 100)) {
    const TokenizedPiece made = TokenizeText(*corpus, piece, {.vocabulary = SmallTokenizer::kVocabulary}, *encoder_);
    for (const DataProblem& problem : made.problems) sentences.push_back(ProblemSentence(*corpus, problem));
  }

  EXPECT_THAT(sentences, ElementsAre(HasSubstr("text.txt: line 251: byte 5 of the line (offset 2254 in the file)")));
}

}  // namespace
}  // namespace trainyard
