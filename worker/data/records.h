// Reads the lines of JSONL files, and says what is wrong with those that cannot be used.
//
//   {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}   tokens that another program made; -100: no loss
//   {"input_ids": [5, 6, 7]}                           tokens, all with loss; the lines together are one stream
//   {"text": "..."}                                    a document; all documents are one stream
//   {"prompt": "...", "response": "..."}               a document with loss on the response
//   {"messages": [{"role": "user", ...}, ...]}         a conversation with loss on the replies (chat_records.h)
//
// Tokens with an 'attention_mask', as tokenizers of transformers return it, must not contain padding, except at the end
// of a record with labels, if the labels of the padding are -100.
//
// Prompt and response are tokenized separately, as they are when a trained model is sampled: the prompt is then given
// as tokens, and the response begins with a token of its own.
//
// Pure, and thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/chat_template.h"
#include "worker/data/chat_records.h"
#include "worker/data/text_encoder.h"
#include "worker/data/token_chunk.h"

namespace trainyard {

// The names of the fields in the lines; an empty name: the lines do not have it. All empty: decided by the first line.
struct RecordFields {
  std::string text = {};
  std::string prompt = {};
  std::string response = {};
  std::string input_ids = {};
  std::string labels = {};
  std::string messages = {};
  // True: the names were derived from the first record, so a later record of another form is an error.
  bool derived = false;

  friend bool operator==(const RecordFields&, const RecordFields&) = default;
};

struct RecordRules {
  RecordFields fields = {};
  bool loss_on_prompt = false;  // prompts are trained on too
  int64_t vocabulary = 0;       // of the model: every token must be smaller
  bool separate_documents = false;
  std::shared_ptr<const ChatTemplate> chat = {};  // with `messages`: the template of the tokenizer

  // Whether each line is a document of its own, with a mask; otherwise all lines are one stream.
  bool has_documents() const { return !fields.prompt.empty() || !fields.labels.empty() || !fields.messages.empty(); }
  ChunkKind chunk_kind() const {
    if (has_documents()) return ChunkKind::kDocuments;
    return separate_documents ? ChunkKind::kStreamWithStarts : ChunkKind::kStream;
  }
  bool needs_encoder() const { return fields.input_ids.empty(); }
  // Everything that decides which tokens a line becomes, except the encoder.
  std::string identity() const;
};

// A longer line is refused, so that a file without line ends does not fill the memory.
inline constexpr size_t kJsonLineBytesMax = size_t{64} << 20;
// The same for a conversation, which is read more than once.
inline constexpr size_t kChatLineBytesMax = size_t{16} << 20;

// Returns the fields of the form to which the keys of this line belong; the comment at the top of this file lists the
// forms. Possible errors: InvalidArgument if the line is not a JSON object, or has the keys of no form or of several.
absl::StatusOr<RecordFields> FieldsOfRecord(absl::string_view line);

// Adds the line, which has no line end, to the chunk. `encoder` may be null if the rules do not need it. Fails with
// InvalidArgument, whose message is the reason ("is not JSON: column 5: ..."); the chunk is then unchanged.
absl::Status AddRecord(absl::string_view line, const RecordRules& rules, const TextEncoder* encoder,
                       TokenChunkWriter& chunk);

// The tokens that AddRecord adds for a line with a conversation. REQUIRES: rules.chat is not null. Fails as AddRecord
// does.
absl::StatusOr<ChatTokens> TokenizeChatLine(absl::string_view line, const RecordRules& rules,
                                            const TextEncoder& encoder);

// The position of the first byte that is not valid UTF-8 (overlong forms and surrogates are invalid); npos: none.
size_t FindInvalidUtf8(absl::string_view text);

}  // namespace trainyard
