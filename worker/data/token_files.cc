#include "worker/data/token_files.h"

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/escape.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/name_exists.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr absl::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr absl::string_view kLegacyMagic("TNTIDX\0\0", 8);
constexpr size_t kIndexHeaderBytes = 34;  // up to the first array; token_files.h shows the fields
constexpr uint64_t kTokenIndexBytesMax = uint64_t{64} << 30;
// The first numbers of the files of llm.c: 16-bit tokens, and 32-bit tokens of Llama 3.
constexpr uint32_t kLlmCMagics[] = {20240520, 20240801};
constexpr size_t kProblemsShown = 10;

absl::Status Reason(absl::string_view reason) { return absl::InvalidArgumentError(reason); }

// Element `i` of an array that may not be aligned.
template <typename T>
T ElementAt(absl::string_view array, uint64_t i) {
  T value;
  std::memcpy(&value, array.data() + i * sizeof(T), sizeof(T));
  return value;
}

absl::StatusOr<TokenType> TypeOfCode(uint8_t code) {
  switch (code) {
    case 1:
      return TokenType::kUint8;
    case 2:
      return TokenType::kInt8;
    case 3:
      return TokenType::kInt16;
    case 4:
      return TokenType::kInt32;
    case 5:
      return TokenType::kInt64;
    case 8:
      return TokenType::kUint16;
    default:
      return Reason(absl::StrCat("has tokens of type ", code,
                                 "; expected 1 to 5 (uint8, int8, int16, int32, int64) or 8 "
                                 "(uint16)"));
  }
}

// The arrays of an .idx file.
struct IndexArrays {
  uint64_t num_sequences = 0, num_boundaries = 0;
  absl::string_view lengths = {}, pointers = {}, boundaries = {};
};

absl::StatusOr<IndexArrays> ArraysOf(absl::string_view index) {
  IndexArrays arrays{.num_sequences = ElementAt<uint64_t>(index.substr(18), 0),
                     .num_boundaries = ElementAt<uint64_t>(index.substr(26), 0)};
  const uint64_t sequences = arrays.num_sequences, boundaries = arrays.num_boundaries;
  // If this is false, the product below may have overflowed.
  const bool fits = sequences <= index.size() && boundaries <= index.size();
  const uint64_t expected = kIndexHeaderBytes + 12 * sequences + 8 * boundaries;
  if (!fits || index.size() != expected) {
    return Reason(absl::StrCat("has ", index.size(), " bytes, but describes ", sequences, " sequences and ", boundaries,
                               " boundaries of documents", fits ? absl::StrCat(", which take ", expected) : ""));
  }
  arrays.lengths = index.substr(kIndexHeaderBytes, 4 * sequences);
  arrays.pointers = index.substr(kIndexHeaderBytes + 4 * sequences, 8 * sequences);
  arrays.boundaries = index.substr(kIndexHeaderBytes + 12 * sequences);
  return arrays;
}

// Adds up the sequences, which must follow one another without gaps. Returns the first token of each, and the end.
absl::StatusOr<std::vector<uint64_t>> FirstTokens(const IndexArrays& arrays, int64_t token_bytes, int64_t bin_bytes) {
  std::vector<uint64_t> first_tokens;
  first_tokens.reserve(arrays.num_sequences + 1);
  int64_t bytes = 0;
  for (uint64_t i = 0; i < arrays.num_sequences; ++i) {
    const int64_t length = ElementAt<int32_t>(arrays.lengths, i), pointer = ElementAt<int64_t>(arrays.pointers, i);
    if (length < 0) return Reason(absl::StrCat("gives sequence ", i, " a length of ", length));
    if (pointer != bytes) {
      return Reason(absl::StrCat("places sequence ", i, " at byte ", pointer, "; expected ", bytes,
                                 ", after the sequences before it"));
    }
    first_tokens.push_back(static_cast<uint64_t>(bytes / token_bytes));
    bytes += length * token_bytes;
    if (bytes > bin_bytes) break;
  }
  if (bytes != bin_bytes) {
    return Reason(absl::StrCat("describes ", bytes > bin_bytes ? "more than " : "", std::min(bytes, bin_bytes),
                               " bytes of tokens, but the .bin file has ", bin_bytes, "; do they belong together?"));
  }
  first_tokens.push_back(static_cast<uint64_t>(bytes / token_bytes));
  return first_tokens;
}

absl::StatusOr<TokenFile> OpenPlainTokens(absl::string_view contents) {
  for (const uint32_t magic : kLlmCMagics) {
    if (contents.size() >= sizeof magic && ElementAt<uint32_t>(contents, 0) == magic) {
      return Reason(absl::StrCat("begins with the number ", magic,
                                 ", so it is a file of llm.c with a header; write its tokens alone, as nanoGPT does"));
    }
  }
  if (contents.size() % 2 != 0) {
    return Reason(absl::StrCat("has ", contents.size(),
                               " bytes, an odd number, so it does not hold 16-bit tokens, and there is no .idx file"));
  }
  return TokenFile{.num_tokens = static_cast<int64_t>(contents.size() / 2)};
}

absl::StatusOr<TokenFile> OpenTokenFile(const std::string& path, absl::string_view contents) {
  if (!absl::EndsWith(path, kTokenFileSuffix)) {
    return Reason("does not end in .bin; name the .bin file, and keep the .idx file next to it");
  }
  const std::string index_path = absl::StrCat(absl::StripSuffix(path, kTokenFileSuffix), ".idx");
  // An index that is there but cannot be read shows that the file is not one of plain 16-bit tokens.
  if (!NameExists(index_path)) return OpenPlainTokens(contents);
  ASSIGN_OR_RETURN(const std::string index, ReadRegularFile(index_path, kTokenIndexBytesMax));
  absl::StatusOr<TokenFile> file = ParseTokenIndex(index, static_cast<int64_t>(contents.size()));
  if (!file.ok()) return Reason(absl::StrCat("its .idx file ", file.status().message()));
  return file;
}

}  // namespace

absl::StatusOr<TokenFile> ParseTokenIndex(absl::string_view index, int64_t bin_bytes) {
  if (absl::StartsWith(index, kLegacyMagic)) {
    return Reason("has the older format TNTIDX; convert it with Megatron-LM, or write the tokens again");
  }
  if (!absl::StartsWith(index, kMegatronMagic)) return Reason("does not begin with MMIDIDX");
  if (index.size() < kIndexHeaderBytes) return Reason(absl::StrCat("is cut after ", index.size(), " bytes"));
  if (const uint64_t version = ElementAt<uint64_t>(index.substr(9), 0); version != 1) {
    return Reason(absl::StrCat("has version ", version, "; expected 1"));
  }
  TokenFile file{.has_documents = true, .index_hash = HashHex(index)};
  ASSIGN_OR_RETURN(file.type, TypeOfCode(ElementAt<uint8_t>(index, 17)));
  ASSIGN_OR_RETURN(const IndexArrays arrays, ArraysOf(index));
  const int64_t token_bytes = BytesOf(file.type);
  ASSIGN_OR_RETURN(const std::vector<uint64_t> first_tokens, FirstTokens(arrays, token_bytes, bin_bytes));
  file.num_tokens = bin_bytes / token_bytes;
  int64_t last = 0;
  for (uint64_t i = 0; i < arrays.num_boundaries; ++i) {
    const int64_t sequence = ElementAt<int64_t>(arrays.boundaries, i);
    if (sequence < last || sequence > static_cast<int64_t>(arrays.num_sequences) || (i == 0 && sequence != 0)) {
      return Reason(absl::StrCat("begins document ", i, " with sequence ", sequence, "; expected a number from ",
                                 i == 0 ? 0 : last, " to ", i == 0 ? 0 : arrays.num_sequences));
    }
    last = sequence;
    const uint64_t start = first_tokens[static_cast<size_t>(sequence)];
    // Skips documents without tokens, and the last boundary, which is the end of the last document.
    const bool is_new = file.starts.empty() || start > file.starts.back();
    if (is_new && start < static_cast<uint64_t>(file.num_tokens)) file.starts.push_back(start);
  }
  if (arrays.num_boundaries == 0 || last != static_cast<int64_t>(arrays.num_sequences)) {
    return Reason(absl::StrCat("ends its last document before sequence ", last, "; expected ", arrays.num_sequences,
                               ", the number of sequences"));
  }
  return file;
}

absl::StatusOr<std::vector<TokenFile>> OpenTokenFiles(const Corpus& corpus, const std::string& key) {
  std::vector<TokenFile> files;
  std::vector<std::string> problems;
  for (size_t i = 0; i < corpus.files().size(); ++i) {
    const std::string& path = corpus.files()[i].path;
    absl::StatusOr<TokenFile> file = OpenTokenFile(path, corpus.ContentsOf(i));
    if (file.ok()) {
      files.push_back(*std::move(file));
    } else {
      problems.push_back(absl::StrCat(EscapeText(path), ": ", file.status().message()));
    }
  }
  if (problems.empty()) return files;
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", JoinFirst(problems, kProblemsShown, "; ", "; ")));
}

TokenChunk ChunkOf(const Corpus& corpus, size_t file, const TokenFile& tokens, bool with_starts) {
  return TokenChunk::InPlace(tokens.type, corpus.ContentsOf(file).data(), tokens.num_tokens,
                             with_starts ? absl::MakeConstSpan(tokens.starts) : absl::Span<const uint64_t>());
}

}  // namespace trainyard
