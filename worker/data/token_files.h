// Files of tokens that other programs made, which are read in place:
//
//   NAME.bin             of nanoGPT: 16-bit tokens, little-endian, without a header. Where documents begin is unknown.
//   NAME.bin, NAME.idx   of Megatron-LM (megatron/core/datasets/indexed_dataset.py). The second file, little-endian:
//                        "MMIDIDX\0\0" | u64 version 1 | u8 type of a token | u64 sequences | u64 documents + 1
//                        | i32 number of tokens of each sequence | i64 byte offset of each sequence in NAME.bin
//                        | i64 index of the first sequence of each document, and the number of sequences
//
// Pure except for reading the .idx files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/corpus.h"
#include "worker/data/token_chunk.h"

namespace trainyard {

// The tokens of one file of a corpus.
struct TokenFile {
  TokenType type = TokenType::kUint16;
  int64_t num_tokens = 0;
  bool has_documents = false;         // whether the file says where documents begin
  std::vector<uint64_t> starts = {};  // the position of the first token of each document
  std::string index_hash = {};        // of the .idx file; empty: there is none
};

// In a folder or a glob, only files with this suffix are read, because the others (such as .idx) hold no tokens.
inline constexpr char kTokenFileSuffix[] = ".bin";

// Reads what is needed to find tokens and documents in every file of the corpus. Fails with InvalidArgument, which
// shows the problems of up to ten files: a file in neither of these formats, one whose size is not a whole number of
// tokens, an .idx that is damaged or describes another .bin.
absl::StatusOr<std::vector<TokenFile>> OpenTokenFiles(const Corpus& corpus, const std::string& key);

// Parses an .idx file. `bin_bytes`: the size of the .bin file. Fails with InvalidArgument; its message is the reason.
absl::StatusOr<TokenFile> ParseTokenIndex(absl::string_view index, int64_t bin_bytes);

// The tokens of file `file` as a chunk that is read in place. `with_starts`: the chunk has the starts of documents.
TokenChunk ChunkOf(const Corpus& corpus, size_t file, const TokenFile& tokens, bool with_starts);

}  // namespace trainyard
