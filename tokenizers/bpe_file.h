// Reads tokenizer.json files of the BPE kind. Pure and thread-safe. The files come from outside: whatever they
// contain, the result is a tokenizer or a list of everything that is wrong.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/bpe_tokenizer.h"

namespace trainyard {

// What other files of the same folder say.
struct BpeSurroundings {
  std::string begin, end, padding, unknown;  // names of special tokens; empty: not known
  std::vector<AddedToken> added;             // ordered by id; those that tokenizer.json lacks come after its own
  // All special tokens that the files name. Like transformers, the tokenizer finds them in a text. Their ids are those
  // of the vocabulary; a name that the vocabulary lacks gets no id, because the model has no row for it.
  std::vector<AddedToken> named = {};
};

// `file`: the text of tokenizer.json; `name`: for messages. Possible errors: InvalidArgument: `file` is no such
// file, or uses something that is not supported.
absl::StatusOr<std::unique_ptr<BpeTokenizer>> ReadBpeTokenizer(absl::string_view file, absl::string_view name,
                                                               const BpeSurroundings& around = {});

}  // namespace trainyard
