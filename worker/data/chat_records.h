// Records with a conversation: {"messages": [{"role": "user", "content": "..."}, ...]}, maybe with "tools". The
// tokenizer's chat template makes one text of it, which is a document with loss on what the assistant wrote.
//
// A template with {% generation %} marks that part. With any other template, the conversation is rendered once up to
// each reply (with the generation prompt) and once including it. Both texts must be the beginning of the text of the
// whole conversation, and the reply is what the second one adds to the first.
//
// Pure, and thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/chat_template.h"
#include "worker/data/text_encoder.h"

namespace trainyard {

struct ChatTokens {
  std::string text = {};
  std::vector<int64_t> tokens = {};  // those that apply_chat_template of transformers returns
  std::vector<bool> is_reply = {};   // for each token: whether it contains a part of what the assistant wrote
};

// `record`: the object of a line; `field`: the name of its list of messages. Possible errors: InvalidArgument with the
// reason, also if the template refuses the conversation or exceeds its limits.
absl::StatusOr<ChatTokens> TokenizeChat(const nlohmann::ordered_json& record, const std::string& field,
                                        const ChatTemplate& chat, const TextEncoder& encoder);

// What to do if a template cannot be used: the lines of Python that write tokens and labels.
absl::string_view ChatExportAdvice();

}  // namespace trainyard
