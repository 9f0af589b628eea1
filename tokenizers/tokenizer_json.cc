#include "tokenizers/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "tokenizers/byte_tokenizer.h"

namespace trainyard {
namespace {

using Json = nlohmann::ordered_json;

void AppendUtf8(uint32_t code, std::string& text) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else {  // the codes used here are below 0x800
    text += static_cast<char>(0xC0 | code >> 6);
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// A byte-level BPE tokenizer without merges. Its vocabulary is the alphabet of byte-level BPE, in which a printable
// byte is the Unicode character with the same number, and the other bytes are the characters from 256 on.
Json Tokenizer() {
  Json vocabulary = Json::object();
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < ByteTokenizer::kVocabulary; ++byte) {
    const bool is_printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    std::string character;
    AppendUtf8(is_printable ? byte : next++, character);
    vocabulary[character] = byte;
  }
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", Json::array()}}}};
}

}  // namespace

std::string ByteTokenizerJson() { return Tokenizer().dump(2) + "\n"; }

std::string ByteTokenizerConfigJson(int64_t context) {
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", context},
                       {"clean_up_tokenization_spaces", false}};
  return config.dump(2) + "\n";
}

}  // namespace trainyard
