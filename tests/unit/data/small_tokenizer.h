// A tokenizer.json of byte-level BPE with a few merges and special tokens, as transformers would write it.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tokenizers/tokenizer_json.h"

namespace trainyard {

struct SmallTokenizer {
  static constexpr int64_t kThe = 257;    // "the" as one token
  static constexpr int64_t kBegin = 258;  // before every text
  static constexpr int64_t kEnd = 259;
  static constexpr int64_t kVocabulary = 260;
};

inline void WriteSmallTokenizer(const std::string& folder) {
  using Json = nlohmann::json;
  Json file = Json::parse(ByteTokenizerJson());
  file["model"]["vocab"]["th"] = 256;
  file["model"]["vocab"]["the"] = SmallTokenizer::kThe;
  file["model"]["merges"] = Json::array({"t h", "th e"});
  file["pre_tokenizer"]["use_regex"] = true;
  const auto special = [](int64_t id, const char* text) {
    return Json{{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  file["added_tokens"] = {special(SmallTokenizer::kBegin, "<begin>"), special(SmallTokenizer::kEnd, "<end>")};
  file["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "pair": [],
      "single": [{"SpecialToken": {"id": "<begin>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<begin>": {"id": "<begin>", "ids": [258], "tokens": ["<begin>"]}}})");
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << file.dump();
  std::ofstream(folder + "/tokenizer_config.json") << R"({"bos_token": "<begin>", "eos_token": "<end>"})";
}

}  // namespace trainyard
