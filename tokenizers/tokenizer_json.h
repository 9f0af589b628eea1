// Describes the byte tokenizer in the JSON files that the Python libraries tokenizers and transformers read.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace trainyard {

// Returns the text of tokenizer.json.
std::string ByteTokenizerJson();

// Returns the text of tokenizer_config.json for a model with a context of `context` tokens.
std::string ByteTokenizerConfigJson(int64_t context);

}  // namespace trainyard
