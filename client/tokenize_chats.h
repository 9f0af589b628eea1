// trainctl tokenize --chats: shows how conversations in JSONL files become text and tokens on the ranks, and which
// tokens count for the loss. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace trainyard::client {

struct ChatOptions {
  std::string tokenizer;                // the path of its folder or file
  std::vector<std::string> files = {};  // JSONL
  std::string template_file = {};       // empty: the template of the tokenizer's folder
  std::string messages = "messages";    // the field of each line that contains the messages
  bool show = false;                    // every conversation, and not only the counts
  bool json = false;
};

// Prints the counts of each file. Possible errors: those of reading a file; InvalidArgument: the tokenizer, the
// template or lines cannot be used (the message names the first lines and counts the others); Aborted: the output
// cannot be written.
absl::Status TokenizeChats(const ChatOptions& options);

}  // namespace trainyard::client
