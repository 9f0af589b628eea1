// Which tokens of a conversation have a loss.
#include "worker/data/chat_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "worker/data/records.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoTurns[] =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},)"
    R"( {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]})";

class ChatRecordsTest : public ::testing::Test {
 protected:
  // The text with each token that has a loss in upper case; or the error.
  std::string Shown(const std::string& chat_template, const std::string& line = kTwoTurns) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / "chat_template.jinja", chat_template).ok());
    const auto chat = ChatTemplate::Open(folder_.path());
    if (!chat.ok()) return std::string(chat.status().message());
    const auto made = TokenizeChat(nlohmann::ordered_json::parse(line), "messages", **chat, *NewByteEncoder());
    if (!made.ok()) return std::string(made.status().message());
    std::string shown;
    for (size_t i = 0; i < made->tokens.size(); ++i) {
      const auto letter = static_cast<char>(made->tokens[i]);
      shown.push_back(made->is_reply[i] && letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A')
                                                                          : letter);
    }
    return shown;
  }

  TemporaryFolder folder_;
};

TEST_F(ChatRecordsTest, MarkedTextHasALoss) {
  EXPECT_EQ(
      Shown("{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}."
            "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"),
      "<u>a<a>BC.<u>d<a>E.");
}

TEST_F(ChatRecordsTest, WithoutMarksAReplyIsWhatFollowsItsPrompt) {
  EXPECT_EQ(Shown("{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}x{% endfor %}"
                  "{% if add_generation_prompt %}<a>{% endif %}"),
            "<u>ax<a>BCX<u>dx<a>EX");
  EXPECT_EQ(Shown("{% for m in messages %}{{ '[' ~ m.content ~ ']' if m.role == 'user' else m.content }}{% endfor %}"),
            "[a]BC[d]E");
}

TEST_F(ChatRecordsTest, ATemplateThatChangesEarlierMessagesIsRefusedWithoutMarks) {
  EXPECT_THAT(Shown("{% for m in messages %}{{ m.content }}{% endfor %}{% if not add_generation_prompt %}e{% endif %}"),
              HasSubstr("is not the beginning of the text of the conversation"));
  EXPECT_THAT(Shown("{{ messages | length }}"), HasSubstr("mark the replies by {% generation %}"));
}

TEST_F(ChatRecordsTest, MistakesInTheTemplateOrTheRecordAreNamed) {
  EXPECT_THAT(Shown("{{ raise_exception('no system') }}"),
              HasSubstr("line 1: the template refuses the conversation: no system"));
  EXPECT_THAT(Shown("x", R"({"messages": "text"})"), HasSubstr("is not a list of messages but of type string"));
  EXPECT_THAT(Shown("x", R"({"messages": [{"role": "user"}], "tools": 1})"), HasSubstr("its tools are not a list"));
}

TEST_F(ChatRecordsTest, AHostileLineIsRefusedWithinSeconds) {
  constexpr char kUnmarked[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
  const auto chats = [](size_t count, const std::string& message) {
    std::string line = absl::StrCat(R"({"messages": [)", message);
    for (size_t i = 1; i < count; ++i) absl::StrAppend(&line, ",", message);
    return line + "]}";
  };
  const std::string reply = R"({"role": "assistant", "content": "a"})";

  EXPECT_THAT(Shown(kUnmarked, chats(5'000, reply)), HasSubstr("has 5000 messages; at most 4096"));
  EXPECT_THAT(Shown("{% for m in messages %}{% for i in range(9) %}{{ m.content }}{% endfor %}{% endfor %}",
                    chats(4'000, reply)),
              HasSubstr("in more than 50000000 steps"));
}

TEST_F(ChatRecordsTest, TheKeysAndTheBytesOfALineHaveLimits) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "chat_template.jinja", "{{ messages | length }}").ok());
  RecordRules rules{.fields = {.messages = "messages"}, .vocabulary = 256};
  rules.chat = ChatTemplate::Open(folder_.path()).value();
  std::string wide = R"({"messages": [{"role": "user"}], "a": {"k": 0)";
  for (int i = 0; i < 500'000; ++i) absl::StrAppend(&wide, ", \"k", i, "\": ", i);
  absl::StrAppend(&wide, "}}");
  const std::string longest = absl::StrCat(R"({"messages": ")", std::string(kChatLineBytesMax, 'a'), "\"}");

  EXPECT_THAT(TokenizeChatLine(wide, rules, *NewByteEncoder()).status().message(),
              HasSubstr("an object with more than 1000 keys"));
  EXPECT_THAT(TokenizeChatLine(longest, rules, *NewByteEncoder()).status().message(),
              HasSubstr("in a line with a conversation"));
}

TEST_F(ChatRecordsTest, AnotherTemplateReplacesThatOfTheFolder) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "chat_template.jinja", "old").ok());

  const auto chat = ChatTemplate::Open(folder_.path(), "new{{ messages | length }}").value();
  const auto record = nlohmann::ordered_json::parse(R"({"turns": [{"role": "user", "content": "a"}]})");

  EXPECT_EQ(TokenizeChat(record, "turns", *chat, *NewByteEncoder())->text, "new1");
  EXPECT_NE(chat->identity(), ChatTemplate::Open(folder_.path()).value()->identity());
  EXPECT_THAT(ChatTemplate::Open(folder_.path(), "{% x %}").status().message(),
              HasSubstr("train.data.chat_template: line 1"));
}

TEST_F(ChatRecordsTest, ARecordBecomesADocumentAndTheTemplateIsAPartOfTheIdentity) {
  ASSERT_TRUE(
      WriteFileAtomically(folder_ / "chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}").ok());
  RecordRules rules{.fields = FieldsOfRecord(kTwoTurns).value(), .vocabulary = 256};
  rules.chat = ChatTemplate::Open(folder_.path()).value();
  const std::string identity = rules.identity();
  TokenChunkWriter chunk(rules.vocabulary, rules.chunk_kind());

  ASSERT_TRUE(AddRecord(kTwoTurns, rules, NewByteEncoder().get(), chunk).ok());
  ASSERT_TRUE(WriteFileAtomically(folder_ / "chat_template.jinja", "other").ok());
  rules.chat = ChatTemplate::Open(folder_.path()).value();

  EXPECT_EQ(rules.fields.messages, "messages");
  EXPECT_EQ(chunk.num_tokens(), 5);
  EXPECT_NE(rules.identity(), identity);
}

}  // namespace
}  // namespace trainyard
