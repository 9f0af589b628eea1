#include "tokenizers/tokenizer_json.h"

#include <nlohmann/json.hpp>

#include "tokenizers/byte_letters.h"
#include "tokenizers/byte_tokenizer.h"

namespace trainyard {
namespace {

using Json = nlohmann::ordered_json;

// A byte-level BPE tokenizer without merges. Its vocabulary is the alphabet of byte-level BPE.
Json Description() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < ByteTokenizer::kVocabulary; ++byte) {
    vocabulary[ByteLetter(static_cast<uint8_t>(byte))] = byte;
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

std::string ByteTokenizerJson() { return Description().dump(2) + "\n"; }

std::string ByteTokenizerConfigJson(int64_t context) {
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"model_max_length", context},
                       {"clean_up_tokenization_spaces", false}};
  return config.dump(2) + "\n";
}

}  // namespace trainyard
