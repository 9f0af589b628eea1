// The tokenizer of bytes and the files that describe it. tests/interop/transformers_test.py checks that the Python
// library opens these files and gives the same tokens.
#include "tokenizers/byte_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tokenizers/tokenizer_json.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ByteTokenizer, EachByteIsAToken) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(*tokenizer.Encode("A\n\xc3\xa4"), ElementsAre(65, 10, 0xc3, 0xa4));
  EXPECT_THAT(*tokenizer.Encode(""), IsEmpty());
}

TEST(ByteTokenizer, EveryByteRoundTrips) {
  std::string all;
  for (int byte = 0; byte < ByteTokenizer::kVocabulary; ++byte) all += static_cast<char>(byte);
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.Decode(*tokenizer.Encode(all)), all);
}

TEST(ByteTokenizerJson, HasATokenForEveryByteAndMergesNothing) {
  const nlohmann::json json = nlohmann::json::parse(ByteTokenizerJson());

  const nlohmann::json& vocabulary = json["model"]["vocab"];
  std::set<int> ids;
  for (const auto& [letter, id] : vocabulary.items()) ids.insert(id.get<int>());
  EXPECT_EQ(vocabulary.size(), 256u);
  EXPECT_EQ(ids.size(), 256u);
  EXPECT_EQ(*ids.rbegin(), 255);
  EXPECT_EQ(vocabulary["A"], 65);
  EXPECT_EQ(vocabulary["\u0100"], 0);  // the first byte that is not printable
  EXPECT_TRUE(json["model"]["merges"].empty());
  EXPECT_TRUE(json["added_tokens"].empty());
}

TEST(ByteTokenizerJson, ConfigHasTheLengthOfTheModel) {
  EXPECT_EQ(nlohmann::json::parse(ByteTokenizerConfigJson(64))["model_max_length"], 64);
}

}  // namespace
}  // namespace trainyard
