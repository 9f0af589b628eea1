#include "templates/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

constexpr char kTurns[] =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

class ChatTemplateTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(folder_.path() + "/" + name, text).ok());
  }
  absl::StatusOr<std::unique_ptr<ChatTemplate>> Open() { return ChatTemplate::Open(folder_.path()); }
  std::string ErrorOf() {
    const auto chat = Open();
    return chat.ok() ? "none" : std::string(chat.status().message());
  }

  TemporaryFolder folder_;
};

TEST_F(ChatTemplateTest, ConversationsAreRenderedWithTheSpecialTokensOfTheFolder) {
  Write("tokenizer_config.json",
        Json({{"chat_template", kTurns}, {"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}}).dump());
  const auto chat = Open();
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto conversation = ReadConversation(
      Json::parse(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"), nullptr);
  ASSERT_TRUE(conversation.ok()) << conversation.status();

  EXPECT_EQ((*chat)->Render(*conversation, 2, false)->text, "<s><user>a</s><assistant>b</s>");
  EXPECT_EQ((*chat)->Render(*conversation, 1, true)->text, "<s><user>a</s><assistant>");
}

TEST_F(ChatTemplateTest, TheTemplateFileReplacesTheTemplateOfTheConfiguration) {
  Write("tokenizer_config.json", R"({"chat_template": "old"})");
  Write("chat_template.jinja", "new");
  const auto chat = Open();
  ASSERT_TRUE(chat.ok()) << chat.status();

  EXPECT_EQ((*chat)->Render({}, 0, false)->text, "new");
}

TEST_F(ChatTemplateTest, OfSeveralTemplatesTheDefaultOneIsTaken) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  const auto chat = Open();
  ASSERT_TRUE(chat.ok()) << chat.status();
  Conversation with_tools;
  with_tools.tools = templates::Value::List({});

  EXPECT_EQ((*chat)->Render({}, 0, false)->text, "d");
  EXPECT_THAT(std::string((*chat)->Render(with_tools, 0, false).status().message()), HasSubstr("'tool_use'"));
}

TEST_F(ChatTemplateTest, WhatCannotBeUsedIsNamed) {
  EXPECT_THAT(ErrorOf(), HasSubstr("has no chat template"));
  Write("chat_template.jinja", "a\n{{ x | wordwrap }}");
  EXPECT_THAT(ErrorOf(), HasSubstr("chat_template.jinja: line 2: the filter 'wordwrap'"));
  Write("chat_template.jinja", kTurns);
  EXPECT_THAT(ErrorOf(), HasSubstr("reads 'bos_token', but"));
}

TEST_F(ChatTemplateTest, TheDateOfTheDayIsRefused) {
  Write("chat_template.jinja", "{{ strftime_now('%d %b %Y') }}");

  EXPECT_THAT(std::string((*Open())->Render({}, 0, false).status().message()), HasSubstr("today's date"));
}

TEST_F(ChatTemplateTest, OtherTemplatesAndSpecialTokensHaveOtherIdentities) {
  Write("chat_template.jinja", "a");
  const std::string before = (*Open())->identity();
  Write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  const std::string with_token = (*Open())->identity();
  Write("chat_template.jinja", "b");

  EXPECT_NE(with_token, before);
  EXPECT_NE((*Open())->identity(), with_token);
}

TEST_F(ChatTemplateTest, MessagesAreCheckedAndNormalizedAsByTransformers) {
  EXPECT_THAT(std::string(ReadConversation(Json::parse("[]"), nullptr).status().message()),
              HasSubstr("without messages"));
  EXPECT_THAT(std::string(ReadConversation(Json::parse(R"([{"content": "a"}])"), nullptr).status().message()),
              HasSubstr("message 0 has no 'role'"));
  const auto read =
      ReadConversation(Json::parse(R"([{"role": "assistant", "content": null, "reasoning": "r"}])"), nullptr);
  ASSERT_TRUE(read.ok()) << read.status();
  const templates::Dict& message = read->messages[0].dict();

  EXPECT_EQ(message.Find("content"), nullptr);
  ASSERT_NE(message.Find("reasoning_content"), nullptr);
  EXPECT_EQ(message.Find("reasoning_content")->text(), "r");
  EXPECT_NE(message.Find("thinking"), nullptr);
}

}  // namespace
}  // namespace trainyard
