// Token files in the formats of other programs. The tests write them according to the definitions of these formats.
#include "worker/data/token_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/unit/temporary_folder.h"
#include "worker/data/pieces.h"
#include "worker/data/token_samples.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An .idx file for sequences of these lengths; `boundaries`: the first sequence of each document, and the end.
struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  int64_t token_bytes = 2;
  std::vector<int32_t> lengths = {};
  std::vector<int64_t> boundaries = {};
  std::vector<int64_t> pointers = {};  // empty: one sequence after another

  std::string Bytes() const {
    std::string out = magic;
    Put(out, version);
    Put(out, type);
    Put(out, static_cast<uint64_t>(lengths.size()));
    Put(out, static_cast<uint64_t>(boundaries.size()));
    for (const int32_t length : lengths) Put(out, length);
    int64_t pointer = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
      Put(out, pointers.empty() ? pointer : pointers[i]);
      pointer += lengths[i] * token_bytes;
    }
    for (const int64_t boundary : boundaries) Put(out, boundary);
    return out;
  }
};

template <typename T>
std::string BytesOfTokens(const std::vector<int64_t>& tokens) {
  std::string out;
  for (const int64_t token : tokens) Put(out, static_cast<T>(token));
  return out;
}

class TokenFilesTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::unique_ptr<Corpus> OpenCorpus() {
    return *Corpus::Open({.paths = {folder_.path()}, .key = "train.data.tokens", .suffix = kTokenFileSuffix});
  }
  std::string ProblemOf(const std::string& name) {
    corpus_ = *Corpus::Open({.paths = {folder_ / name}});
    return std::string(OpenTokenFiles(*corpus_, "train.data.tokens").status().message());
  }

  TemporaryFolder folder_;
  std::unique_ptr<Corpus> corpus_;
};

TEST_F(TokenFilesTest, NanoGptAndMegatronFilesOfEveryType_AreOneStream) {
  std::vector<int64_t> tokens(20);
  std::iota(tokens.begin(), tokens.end(), 100);
  const std::vector<int32_t> lengths = {7, 0, 5, 8};
  const auto write = [&](const std::string& name, uint8_t type, int64_t token_bytes, const std::string& bytes) {
    Write(name + ".bin", bytes);
    Write(name + ".idx",
          Index{.type = type, .token_bytes = token_bytes, .lengths = lengths, .boundaries = {0, 2, 2, 3, 4}}.Bytes());
  };
  write("a-uint8", 1, 1, BytesOfTokens<uint8_t>(tokens));
  write("b-int8", 2, 1, BytesOfTokens<int8_t>(tokens));
  write("c-int16", 3, 2, BytesOfTokens<int16_t>(tokens));
  write("d-int32", 4, 4, BytesOfTokens<int32_t>(tokens));
  write("e-int64", 5, 8, BytesOfTokens<int64_t>(tokens));
  write("f-uint16", 8, 2, BytesOfTokens<uint16_t>(tokens));
  Write("g-nanogpt.bin", BytesOfTokens<uint16_t>(tokens));

  corpus_ = OpenCorpus();
  auto files = OpenTokenFiles(*corpus_, "train.data.tokens");

  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 7u) << "only the .bin files";
  std::vector<TokenChunk> chunks;
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ((*files)[i].has_documents, i < 6);
    // A document without tokens is skipped.
    EXPECT_EQ((*files)[i].starts, i < 6 ? std::vector<uint64_t>({0, 7, 12}) : std::vector<uint64_t>());
    chunks.push_back(ChunkOf(*corpus_, i, (*files)[i], /*with_starts=*/i < 6));
  }
  const auto samples = *TokenSamples::OfChunks(chunks, {.length = 20, .vocabulary = 120});
  EXPECT_EQ(samples->summary().num_tokens, 140);
  std::vector<int64_t> inputs(20), targets(20);
  for (int64_t i = 0; i < 6; ++i) {
    samples->Read(DataPart::kTraining, i, absl::MakeSpan(inputs), absl::MakeSpan(targets), {});
    EXPECT_EQ(inputs, tokens) << i;
    EXPECT_EQ(targets[19], 100);
  }
}

// Regression: without its index, a file of 32-bit tokens was read as twice as many tokens of 16 bits.
TEST_F(TokenFilesTest, AnIndexThatCannotBeOpened_IsAnError_AndDoesNotCountAsMissing) {
  Write("a.bin", BytesOfTokens<int32_t>({1, 2, 3}));
  std::filesystem::create_symlink("missing", folder_ / "a.idx");

  EXPECT_THAT(ProblemOf("a.bin"), HasSubstr("cannot open " + (folder_ / "a.idx")));

  std::filesystem::remove(folder_ / "a.idx");
  EXPECT_EQ(ProblemOf("a.bin"), "") << "a file of 16-bit tokens needs no index";
}

TEST_F(TokenFilesTest, DocumentsOfAnIndex_CanBeSeparate) {
  Write("a.bin", BytesOfTokens<uint16_t>({1, 2, 3, 4, 5, 6, 7, 8, 9}));
  Write("a.idx", Index{.lengths = {3, 2, 4}, .boundaries = {0, 1, 3}}.Bytes());
  corpus_ = OpenCorpus();
  const auto files = *OpenTokenFiles(*corpus_, "train.data.tokens");
  const auto samples = *TokenSamples::OfChunks({ChunkOf(*corpus_, 0, files[0], true)},
                                               {.length = 8, .vocabulary = 10, .separate_documents = true});
  std::vector<int64_t> inputs(8), targets(8), starts(8);
  samples->Read(DataPart::kTraining, 0, absl::MakeSpan(inputs), absl::MakeSpan(targets), absl::MakeSpan(starts));
  EXPECT_THAT(targets, ElementsAre(2, 3, kNoTarget, 5, 6, 7, 8, 9));
  EXPECT_THAT(starts, ElementsAre(0, 0, 0, 3, 3, 3, 3, 3));
  EXPECT_EQ(samples->LossTokens(DataPart::kTraining, 0), 7);
}

TEST_F(TokenFilesTest, TokensOutsideTheVocabulary_AreNamedByFileAndPosition) {
  std::vector<int64_t> tokens(100'000, 5);
  tokens[70'000] = 300;
  tokens[99'999] = -1;
  Write("a.bin", BytesOfTokens<int32_t>(tokens));
  Write("a.idx", Index{.type = 4, .token_bytes = 4, .lengths = {100'000}, .boundaries = {0, 1}}.Bytes());
  corpus_ = OpenCorpus();
  const auto files = *OpenTokenFiles(*corpus_, "train.data.tokens");
  const std::vector<DataPiece> pieces = CutTokens(*corpus_, /*piece_bytes=*/80'000);
  ASSERT_EQ(pieces.size(), 5u);
  std::vector<std::string> problems;
  for (const DataPiece& piece : pieces) {
    const TokenizedPiece checked = CheckTokens(piece, ChunkOf(*corpus_, 0, files[0], false), 4, 300);
    for (const DataProblem& problem : checked.problems) problems.push_back(ProblemSentence(*corpus_, problem));
  }
  EXPECT_THAT(problems, ElementsAre(folder_ / "a.bin: token 300 at position 70000 is not from 0 to 299 "
                                              "(train.model.vocabulary is 300)",
                                    folder_ / "a.bin: token -1 at position 99999 is not from 0 to 299 "
                                              "(train.model.vocabulary is 300)"));
}

TEST_F(TokenFilesTest, FilesOfOtherPrograms_AreRefusedByName) {
  Write("odd.bin", "abc");
  EXPECT_THAT(ProblemOf("odd.bin"), HasSubstr("odd.bin: has 3 bytes, an odd number"));
  for (const uint32_t magic : {20240520u, 20240801u}) {
    std::string bytes;
    Put(bytes, magic);
    Write("llm.bin", bytes + std::string(1024, '\0'));
    EXPECT_THAT(ProblemOf("llm.bin"), HasSubstr("a file of llm.c with a header"));
  }
  Write("text.txt", "text");
  EXPECT_THAT(ProblemOf("text.txt"), HasSubstr("text.txt: does not end in .bin"));
}

TEST_F(TokenFilesTest, EveryCutOrHostileIndex_IsRefused) {
  const Index good{.lengths = {3, 2, 4}, .boundaries = {0, 1, 3}};
  const auto reason = [](const std::string& bytes) {
    return std::string(ParseTokenIndex(bytes, /*bin_bytes=*/18).status().message());
  };
  const auto with = [&](const std::function<void(Index&)>& change) {
    Index index = good;
    change(index);
    return reason(index.Bytes());
  };
  ASSERT_TRUE(ParseTokenIndex(good.Bytes(), 18).ok());
  for (size_t size = 0; size < good.Bytes().size(); ++size) EXPECT_NE(reason(good.Bytes().substr(0, size)), "") << size;
  EXPECT_THAT(reason(good.Bytes() + "x"),
              HasSubstr("describes 3 sequences and 3 boundaries of documents, which take 94"));
  EXPECT_THAT(with([](Index& i) { i.magic = std::string("TNTIDX\0\0", 8); }), HasSubstr("older format TNTIDX"));
  EXPECT_THAT(with([](Index& i) { i.magic = "no magic "; }), HasSubstr("does not begin with MMIDIDX"));
  EXPECT_THAT(with([](Index& i) { i.version = 2; }), HasSubstr("has version 2; expected 1"));
  EXPECT_THAT(with([](Index& i) { i.type = 6; }), HasSubstr("tokens of type 6"));
  EXPECT_THAT(with([](Index& i) { i.lengths = {3, -2, 8}; }), HasSubstr("gives sequence 1 a length of -2"));
  EXPECT_THAT(with([](Index& i) { i.pointers = {0, 8, 10}; }), HasSubstr("sequence 1 at byte 8; expected 6"));
  EXPECT_THAT(with([](Index& i) {
                i.lengths = {3, 2, 3};
              }),
              HasSubstr("describes 16 bytes of tokens, but the .bin file has 18"));
  EXPECT_THAT(with([](Index& i) { i.lengths = {3, 2, INT32_MAX}; }), HasSubstr("describes more than 18 bytes"));
  EXPECT_THAT(with([](Index& i) { i.boundaries = {1, 2, 3}; }), HasSubstr("begins document 0 with sequence 1"));
  EXPECT_THAT(with([](Index& i) { i.boundaries = {0, 4, 3}; }), HasSubstr("begins document 1 with sequence 4"));
  EXPECT_THAT(with([](Index& i) { i.boundaries = {0, 2, 1}; }), HasSubstr("begins document 2 with sequence 1"));
  EXPECT_THAT(with([](Index& i) { i.boundaries = {0, 2}; }), HasSubstr("before sequence 2; expected 3"));
  EXPECT_THAT(with([](Index& i) { i.boundaries = {}; }), HasSubstr("ends its last document"));
  std::string huge = good.Bytes();
  const uint64_t sequences = UINT64_MAX / 12 + 5;  // so that the size overflows
  std::memcpy(huge.data() + 18, &sequences, sizeof sequences);
  EXPECT_THAT(reason(huge), HasSubstr("sequences and 3 boundaries"));
}

}  // namespace
}  // namespace trainyard
