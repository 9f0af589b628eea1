// The byte tokenizer in the form in which the Python libraries tokenizers and transformers open it.
#pragma once

#include <cstdint>
#include <string>

namespace trainyard {

// The text of tokenizer.json.
std::string ByteTokenizerJson();

// The text of tokenizer_config.json for a model that sees `context` tokens.
std::string ByteTokenizerConfigJson(int64_t context);

}  // namespace trainyard
