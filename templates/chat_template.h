// The chat template of a tokenizer: converts a conversation to text as `apply_chat_template` of transformers does.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<ChatTemplate> chat, ChatTemplate::Open("model/"));
//   ASSIGN_OR_RETURN(Conversation conversation, ReadConversation(json["messages"], nullptr));
//   ASSIGN_OR_RETURN(templates::Rendered all, chat->Render(conversation, conversation.messages.size(), false));
//
// Immutable and thread-safe.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/interpreter.h"
#include "templates/parser.h"
#include "templates/value.h"

namespace trainyard {

struct Conversation {
  std::vector<templates::Value> messages;
  templates::Value tools = templates::Value::None();
};

// `messages`: a list of objects with a role; `tools`: a list of JSON schemas, or null. As in transformers, keys without
// a value are left out, and a message has its reasoning under both names that templates read, `reasoning_content` and
// `thinking`. Possible errors: InvalidArgument.
absl::StatusOr<Conversation> ReadConversation(const nlohmann::ordered_json& messages,
                                              const nlohmann::ordered_json* tools);

class ChatTemplate {
 public:
  // `tokenizer`: the folder of the tokenizer, or its file. The template is chat_template.jinja in that folder, or that
  // of tokenizer_config.json; `replacement`, if not empty, is the text of a template to use instead. Possible errors:
  // NotFound, PermissionDenied: a file cannot be read; InvalidArgument: there is no template, or it uses something that
  // is not supported (with its line).
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Open(const std::string& tokenizer,
                                                            const std::string& replacement = "");

  // The text of the first `count` messages. `prompts`: the beginning of a message of the assistant is added to it.
  // Possible errors: InvalidArgument, ResourceExhausted: the template refuses the conversation, or exceeds its limits.
  absl::StatusOr<templates::Rendered> Render(const Conversation& conversation, size_t count, bool prompts) const;

  // Whether {% generation %} marks the assistant's text.
  bool has_generation() const { return parsed_.has_generation; }
  // Everything that decides the text: a hash of the template and the special tokens.
  const std::string& identity() const { return identity_; }

 private:
  ChatTemplate() = default;

  templates::ParsedTemplate parsed_;
  templates::Context context_;
  std::string name_, identity_;
  bool has_tool_template_ = false;
};

}  // namespace trainyard
