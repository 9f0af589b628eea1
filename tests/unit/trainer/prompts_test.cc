#include "worker/trainer/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tokenizers/byte_tokenizer.h"
#include "worker/trainer/text_stream.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> TextsOf(const std::vector<Prompt>& prompts) {
  std::vector<std::string> texts;
  for (const Prompt& prompt : prompts) texts.push_back(prompt.text);
  return texts;
}

TEST(Prompts, LinesOfText_ArePromptsWithTheirNumbers) {
  Problems problems;
  const auto prompts = ParsePrompts("one\n\n two \r\n{\"prompt\": 3}\nlast", "p.txt", problems);
  EXPECT_THAT(TextsOf(prompts), ElementsAre("one", " two ", "{\"prompt\": 3}", "last"));
  EXPECT_EQ(prompts[1].position.line, 3);
  EXPECT_EQ(prompts[3].position.line, 5);
  EXPECT_TRUE(problems.ok());
}

TEST(Prompts, JsonLines_HaveAFieldPrompt) {
  Problems problems;
  const auto prompts =
      ParsePrompts("{\"prompt\": \"a\\nb\"}\n  \n{\"id\": 7, \"prompt\": \"\\u00e9\"}\r\n", "p.jsonl", problems);
  EXPECT_THAT(TextsOf(prompts), ElementsAre("a\nb", "\xc3\xa9"));
  EXPECT_EQ(prompts[1].position.line, 3);
  EXPECT_TRUE(problems.ok());
}

TEST(Prompts, AllBadLinesAreReported_WithFileAndLine) {
  Problems problems;
  ParsePrompts("{\"prompt\": \"good\"}\n{\"prompt\n[1]\n{\"text\": \"x\"}\n{\"prompt\": 5}\n{\"prompt\": \"\"}\n",
               "p.jsonl", problems);
  const std::string message(problems.ToStatus().message());
  EXPECT_EQ(problems.error_count(), 5);
  EXPECT_THAT(message, HasSubstr("p.jsonl:2:1: is not JSON"));
  EXPECT_THAT(message, HasSubstr("p.jsonl:3:1: is not a JSON object but of type array"));
  EXPECT_THAT(message, HasSubstr("p.jsonl:4:1: has no field 'prompt'"));
  EXPECT_THAT(message, HasSubstr("p.jsonl:5:1: 'prompt' is not a text but of type number"));
  EXPECT_THAT(message, HasSubstr("p.jsonl:6:1: 'prompt' is empty"));
  EXPECT_THAT(message, Not(HasSubstr("p.jsonl:1:")));
}

TEST(Prompts, DeeplyNestedLine_IsRefusedBeforeItIsParsed) {
  Problems problems;
  ParsePrompts(std::string(100000, '['), "p.jsonl", problems);
  EXPECT_THAT(std::string(problems.ToStatus().message()), HasSubstr("nested more than 64 deep"));
}

// Each token stands for a text. The first token of a sequence loses the space at its beginning, as in SentencePiece.
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  absl::Status Append(absl::string_view, const EncodeOptions&, std::vector<int32_t>&) const override {
    return absl::UnimplementedError("not needed");
  }
  std::string Decode(absl::Span<const int32_t> ids, bool) const override {
    std::string bytes;
    for (int32_t id : ids) bytes += pieces_[static_cast<size_t>(id)];
    std::string text = bytes.substr(!bytes.empty() && bytes[0] == ' ' ? 1 : 0);
    // As decoders do, replaces a character that is not complete.
    const size_t euro = text.rfind("\xe2");
    if (euro != std::string::npos && text.size() - euro < 3) text.replace(euro, std::string::npos, "\xef\xbf\xbd");
    return text;
  }
  int64_t vocabulary() const override { return static_cast<int64_t>(pieces_.size()); }
  SpecialIds special() const override { return {}; }
  int32_t IdOf(absl::string_view) const override { return -1; }
  std::string TokenOf(int32_t id) const override { return pieces_[static_cast<size_t>(id)]; }
  size_t NextSafeCut(absl::string_view text, size_t) const override { return text.size(); }
  absl::string_view kind() const override { return "pieces"; }
  const std::string& hash() const override { return hash_; }

 private:
  const std::vector<std::string> pieces_;
  const std::string hash_ = "pieces";
};

TEST(TextStream, PartsAreTheWholeText_AndKeepSpacesBetweenTokens) {
  const PieceTokenizer tokenizer({" a", " b", "c"});
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.Add({0, 1}), "a b");
  EXPECT_EQ(stream.Add({1}), " b");
  EXPECT_EQ(stream.Add({2}), "c");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStream, CharacterOfSeveralTokens_AppearsWhenItIsComplete) {
  const PieceTokenizer tokenizer({"x\xe2", "\x82", "\xac y", "z"});
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.Add({3}), "z");
  EXPECT_EQ(stream.Add({0}), "");
  EXPECT_EQ(stream.Add({1}), "");
  EXPECT_EQ(stream.Add({2}), "x\xe2\x82\xac y");
  EXPECT_EQ(stream.Add({0}), "");
  EXPECT_EQ(stream.Finish(), "x\xef\xbf\xbd");
}

TEST(TextStream, Bytes_AppearAsWholeCharacters_AndInvalidOnesAsTheyAre) {
  const ByteTokenizer tokenizer;
  const std::string text = "a\xc3\xa9\xf0\x9f\x98\x80\xff\xffz\x80\xc3";
  TextStream stream(tokenizer);
  std::vector<std::string> parts;
  for (const char byte : text) parts.push_back(stream.Add({static_cast<unsigned char>(byte)}));
  parts.push_back(stream.Finish());
  parts.erase(std::remove(parts.begin(), parts.end(), ""), parts.end());
  EXPECT_THAT(parts, ElementsAre("a", "\xc3\xa9", "\xf0\x9f\x98\x80", "\xff", "\xff", "z", "\x80", "\xc3"));
}

TEST(TextStream, EndlessIncompleteText_IsNotHeldBackForever) {
  const PieceTokenizer tokenizer({"\xe2"});
  TextStream stream(tokenizer);
  size_t longest = 0, held = 0;
  for (int i = 0; i < 200; ++i) {
    held = stream.Add({0}).empty() ? held + 1 : 0;
    longest = std::max(longest, held);
  }
  EXPECT_LT(longest, 20u);
}

}  // namespace
}  // namespace trainyard
