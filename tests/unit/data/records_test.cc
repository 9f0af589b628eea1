// Lines of JSONL: what they become, and the error message for each kind of line that cannot be used.
#include "worker/data/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The tokens of a chunk, and its mask as 0 and 1.
struct Content {
  std::vector<int64_t> tokens;
  std::vector<int> mask;
  TokenChunkHeader header;
};

Content ContentOf(const TokenChunkWriter& writer) {
  const std::string bytes = writer.Finish();
  std::vector<uint64_t> aligned((bytes.size() + 7) / 8);
  std::memcpy(aligned.data(), bytes.data(), bytes.size());
  absl::StatusOr<TokenChunk> chunk = TokenChunk::Parse({reinterpret_cast<const char*>(aligned.data()), bytes.size()});
  EXPECT_TRUE(chunk.ok()) << chunk.status();
  Content content{.header = chunk->header()};
  content.tokens.resize(static_cast<size_t>(chunk->num_tokens()));
  chunk->Read(0, absl::MakeSpan(content.tokens));
  for (int64_t i = 0; chunk->has_documents() && i < chunk->num_tokens(); ++i) content.mask.push_back(chunk->HasLoss(i));
  return content;
}

RecordRules Labelled(int64_t vocabulary = 100) {
  return {.fields = {.input_ids = "input_ids", .labels = "labels"}, .vocabulary = vocabulary};
}
RecordRules Pairs() { return {.fields = {.prompt = "prompt", .response = "response"}, .vocabulary = 256}; }

Content Read(const std::string& line, const RecordRules& rules) {
  TokenChunkWriter writer(rules.vocabulary, rules.chunk_kind());
  const absl::Status added = AddRecord(line, rules, NewByteEncoder().get(), writer);
  EXPECT_TRUE(added.ok()) << added;
  return ContentOf(writer);
}

std::string ReasonOf(const std::string& line, const RecordRules& rules) {
  TokenChunkWriter writer(rules.vocabulary, rules.chunk_kind());
  const absl::Status added = AddRecord(line, rules, NewByteEncoder().get(), writer);
  EXPECT_TRUE(absl::IsInvalidArgument(added)) << added << ": " << line.substr(0, 80);
  EXPECT_EQ(writer.num_tokens(), 0) << "the refused line has added tokens";
  return std::string(added.message());
}

TEST(RecordsTest, LabelsOfMinus100_HaveNoLoss_AndTheFirstTokenIsNeverATarget) {
  const Content content = Read(R"({"input_ids": [5, 6, 7, 8], "labels": [5, -100, 7, 8]})", Labelled());

  EXPECT_THAT(content.tokens, ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(content.mask, ElementsAre(0, 0, 1, 1));
}

TEST(RecordsTest, ADocumentWithoutATarget_IsSkippedAndCounted) {
  for (const char* line : {R"({"input_ids": [5, 6], "labels": [5, -100]})", R"({"input_ids": [5], "labels": [5]})",
                           R"({"input_ids": [], "labels": []})"}) {
    const Content content = Read(line, Labelled());
    EXPECT_THAT(content.tokens, IsEmpty()) << line;
    EXPECT_EQ(content.header.num_empty_records, 1u) << line;
  }
}

TEST(RecordsTest, TokensWithoutLabels_AreAStream) {
  const RecordRules rules{.fields = {.input_ids = "ids"}, .vocabulary = 100'000};

  EXPECT_THAT(Read(R"({"ids": [99999, 0]})", rules).tokens, ElementsAre(99'999, 0));
}

TEST(RecordsTest, APromptWithAResponse_HasALossOnTheResponseAndItsEnd_OrOnAllTokens) {
  RecordRules rules = Pairs();
  EXPECT_THAT(Read(R"({"prompt": "ab", "response": "c"})", rules).mask, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Read(R"({"prompt": "ab", "response": "c"})", rules).tokens, ElementsAre('a', 'b', 'c', 0));
  EXPECT_THAT(Read(R"({"prompt": "ab", "response": ""})", rules).tokens, IsEmpty());

  rules.loss_on_prompt = true;
  EXPECT_THAT(Read(R"({"prompt": "ab", "response": "c"})", rules).mask, ElementsAre(0, 1, 1, 1));
}

TEST(RecordsTest, Text_EndsWithTheTokenThatEndsADocument) {
  const RecordRules rules{.fields = {.text = "t"}, .vocabulary = 256};

  EXPECT_THAT(Read(R"({"t": "hi", "other": [1, {"x": null}]})", rules).tokens, ElementsAre('h', 'i', 0));
  EXPECT_THAT(Read(R"({"t": ""})", rules).tokens, IsEmpty());
  EXPECT_THAT(Read(R"({"t": "a\u0000b\ud83d\ude00"})", rules).tokens,
              ElementsAre('a', 0, 'b', 0xf0, 0x9f, 0x98, 0x80, 0));
}

TEST(RecordsTest, ALineThatCannotBeUsed_IsRefusedWithItsReason) {
  EXPECT_THAT(ReasonOf("{\"prompt\": \"a\"", Pairs()), HasSubstr("is not JSON: column 15: syntax error"));
  EXPECT_THAT(ReasonOf("[1]", Pairs()), HasSubstr("is not a JSON object but of type array"));
  EXPECT_THAT(ReasonOf(R"({"prompt": "a", "answer": "b"})", Pairs()),
              HasSubstr("has no field 'response'; its fields: answer, prompt"));
  EXPECT_THAT(ReasonOf(R"({"prompt": "a", "response": 5})", Pairs()),
              HasSubstr("field 'response' is not text but of type number"));
  EXPECT_THAT(ReasonOf("{\"prompt\": \"\xff\", \"response\": \"b\"}", Pairs()), HasSubstr("ill-formed UTF-8 byte"));
  EXPECT_THAT(ReasonOf(R"({"prompt": "\ud800", "response": "b"})", Pairs()), HasSubstr("surrogate"));
  EXPECT_THAT(ReasonOf(std::string("{\"prompt\": \"\0\"}", 15), Pairs()), HasSubstr("is not JSON: column"));
  EXPECT_THAT(ReasonOf(std::string(100'000, '['), Pairs()), HasSubstr("nested more than 64 deep"));
  EXPECT_THAT(ReasonOf("{\"prompt\": \"" + std::string(200, '[') + "\", \"response\": 1}", Pairs()),
              HasSubstr("field 'response'"));
}

TEST(RecordsTest, TokensThatCannotBeUsed_AreNamed) {
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 100], "labels": [5, 100]})", Labelled()),
              HasSubstr("field 'input_ids': element 1 is 100; expected a whole number from 0 to 99"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, -1], "labels": [5, 6]})", Labelled()), HasSubstr("element 1 is -1"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 1.5], "labels": [5, 6]})", Labelled()), HasSubstr("element 1 is 1.5"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [99999999999999999999], "labels": [1]})", Labelled()), HasSubstr("element 0"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": "5 6", "labels": [5, 6]})", Labelled()),
              HasSubstr("field 'input_ids' is not a list of tokens but of type string"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 6], "labels": [5]})", Labelled()), HasSubstr("'labels' has 1 elements"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 6], "labels": [5, 7]})", Labelled()),
              HasSubstr("element 1 of 'labels' is 7, but that of 'input_ids' is 6"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 6], "labels": [5, -99]})", Labelled()), HasSubstr("or -100"));
}

// Regression: the padding of records that were padded to one length was trained on.
TEST(RecordsTest, PaddingThatWouldBeTrainedOn_IsRefused) {
  const RecordRules stream{.fields = {.input_ids = "input_ids"}, .vocabulary = 100};

  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]})", stream),
              HasSubstr("element 2 of 'attention_mask' is 0: the tokens contain padding"));
  EXPECT_THAT(
      ReasonOf(R"({"input_ids": [0, 5, 6], "labels": [-100, -100, 6], "attention_mask": [0, 1, 1]})", Labelled()),
      HasSubstr("element 0 of 'attention_mask' is 0"));
  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 6, 0], "labels": [5, 6, 0], "attention_mask": [1, 1, 0]})", Labelled()),
              HasSubstr("element 2 of 'attention_mask' is 0"));
  EXPECT_THAT(
      Read(R"({"input_ids": [5, 6, 0], "labels": [-100, 6, -100], "attention_mask": [1, 1, 0]})", Labelled()).mask,
      ElementsAre(0, 1, 0));
  EXPECT_THAT(Read(R"({"input_ids": [5, 6], "attention_mask": [1, 1]})", stream).tokens, ElementsAre(5, 6));
}

// The first record decides whether there are labels. If the first record lacks them, labels of later records must not
// be ignored silently: the job would train on all prompts.
TEST(RecordsTest, LabelsThatTheFirstRecordLacks_AreRefused_UnlessTheFieldsAreNamed) {
  RecordRules derived{.fields = *FieldsOfRecord(R"({"input_ids": [5]})"), .vocabulary = 99};
  RecordRules named{.fields = {.input_ids = "input_ids"}, .vocabulary = 99};

  EXPECT_THAT(ReasonOf(R"({"input_ids": [5, 6], "labels": [-100, 6]})", derived),
              HasSubstr("has the field 'labels', but the first record has none"));
  TokenChunkWriter writer(named.vocabulary, named.chunk_kind());
  EXPECT_TRUE(AddRecord(R"({"input_ids": [5, 6], "labels": [-100, 6]})", named, nullptr, writer).ok());
}

TEST(RecordsTest, TheFormOfALine_FollowsFromItsKeys) {
  EXPECT_EQ(*FieldsOfRecord(R"({"input_ids": [], "labels": [], "attention_mask": []})"),
            (RecordFields{.input_ids = "input_ids", .labels = "labels", .derived = true}));
  EXPECT_EQ(*FieldsOfRecord(R"({"text": "a", "meta": 1})"), (RecordFields{.text = "text", .derived = true}));
  EXPECT_EQ(*FieldsOfRecord(R"({"prompt": "a", "response": "b"})"),
            (RecordFields{.prompt = "prompt", .response = "response", .derived = true}));
  EXPECT_THAT(std::string(FieldsOfRecord(R"({"question": "a"})").status().message()),
              HasSubstr("its fields: question; name the fields to use in train.data.fields"));
  EXPECT_THAT(std::string(FieldsOfRecord(R"({"text": "a", "input_ids": []})").status().message()),
              HasSubstr("has several of the forms"));
  EXPECT_EQ(FieldsOfRecord(R"({"messages": []})")->messages, "messages");
}

TEST(RecordsTest, InvalidUtf8_IsFoundAtItsFirstByte) {
  EXPECT_EQ(FindInvalidUtf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xef\xbf\xbf"), std::string::npos);
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\x80", "\xed\xa0\x80", "\xf0\x8f\x80\x80",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc3("}) {
    EXPECT_EQ(FindInvalidUtf8(absl::StrCat("ab", bad)), 2u) << absl::string_view(bad);
  }
}

}  // namespace
}  // namespace trainyard
