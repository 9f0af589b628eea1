#include "tokenizers/sentencepiece_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/base/casts.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/plural.h"
#include "tokenizers/wire_reader.h"

namespace trainyard {
namespace {

constexpr size_t kProblemsShown = 20;

using Problems = std::vector<std::string>;

// Numbers of fields in sentencepiece_model.proto.
enum ModelField : uint32_t { kPiecesField = 1, kTrainerField = 2, kNormalizerField = 3, kDenormalizerField = 5 };

uint32_t LittleEndian(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<size_t>(i)]);
  return value;
}

void ReadPiece(absl::string_view message, SentencePieceModel& model, Problems& problems) {
  SentencePieceModel::Piece piece;
  uint64_t type = 1;
  uint32_t score = 0;
  WireReader reader(message);
  while (reader.Next()) {
    if (reader.field() == 1) piece.text = std::string(reader.bytes());
    if (reader.field() == 2 && reader.bytes().size() == 4) score = LittleEndian(reader.bytes(), 0);
    if (reader.field() == 3) type = reader.number();
  }
  const std::string where = absl::StrCat("piece ", model.pieces.size());
  if (!reader.ok()) problems.push_back(absl::StrCat(where, " is damaged"));
  if (piece.text.empty()) problems.push_back(absl::StrCat(where, " is empty"));
  if (!std::isfinite(absl::bit_cast<float>(score))) problems.push_back(absl::StrCat(where, " has no finite score"));
  if (type < 1 || type > 6) {
    problems.push_back(absl::StrCat(where, " has the type ", type, ": expected 1 to 6"));
  } else {
    piece.type = static_cast<SentencePieceModel::Type>(type);
  }
  model.pieces.push_back(std::move(piece));
}

void ReadTrainer(absl::string_view message, SentencePieceModel& model, Problems& problems) {
  WireReader reader(message);
  while (reader.Next()) {
    switch (reader.field()) {
      case 3:
        if (reader.number() < 1 || reader.number() > 4) {
          problems.push_back(absl::StrCat("the kind ", reader.number(),
                                          " of the model is not known: expected 1 (unigram), 2 (BPE), 3 (words) or "
                                          "4 (characters)"));
        } else {
          model.kind = static_cast<SentencePieceModel::Kind>(reader.number());
        }
        break;
      case 24:
        model.space_is_suffix = reader.number() != 0;
        break;
      case 35:
        model.byte_fallback = reader.number() != 0;
        break;
      case 45:
        model.unknown = std::string(reader.bytes());
        break;
      case 46:
        model.begin = std::string(reader.bytes());
        break;
      case 47:
        model.end = std::string(reader.bytes());
        break;
      case 48:
        model.padding = std::string(reader.bytes());
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) problems.push_back("its settings of training are damaged");
}

// Checks a table of characters: the size of a double-array trie, the trie, and the texts that its values refer to.
// libsentencepiece follows the trie's offsets without a check, so every unit must lead to a unit, and every value to a
// text.
bool CharactersAreValid(absl::string_view table) {
  if (table.empty()) return true;
  if (table.size() < 4) return false;
  const uint32_t trie_bytes = LittleEndian(table, 0);
  if (trie_bytes == 0 || trie_bytes % 1024 != 0 || trie_bytes >= table.size() - 4) return false;
  const absl::string_view trie = table.substr(4, trie_bytes), texts = table.substr(4 + trie_bytes);
  if (texts.back() != '\0') return false;
  const size_t units = trie_bytes / 4;
  constexpr uint32_t kIsValue = uint32_t{1} << 31;
  for (size_t i = 0; i < units; ++i) {
    const uint32_t unit = LittleEndian(trie, i * 4);
    if ((unit & kIsValue) != 0) continue;  // a value is checked at the unit that leads to it
    const size_t child = i ^ (size_t{unit >> 10} << ((unit & (1u << 9)) >> 6));
    if ((child | 0xFF) >= units) return false;
    const bool has_value = (unit >> 8 & 1) != 0;
    if (has_value && (LittleEndian(trie, child * 4) & ~kIsValue) >= texts.size()) return false;
  }
  return true;
}

void ReadNormalizer(absl::string_view message, SentencePieceModel& model, Problems& problems) {
  WireReader reader(message);
  while (reader.Next()) {
    switch (reader.field()) {
      case 1:
        model.normalization = std::string(reader.bytes());
        break;
      case 2:
        model.has_characters = !reader.bytes().empty();
        if (!CharactersAreValid(reader.bytes())) problems.push_back("its table of normalized characters is damaged");
        break;
      case 3:
        model.adds_prefix = reader.number() != 0;
        break;
      case 4:
        model.removes_spaces = reader.number() != 0;
        break;
      case 5:
        model.escapes_spaces = reader.number() != 0;
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) problems.push_back("its settings of normalization are damaged");
}

void CheckPieces(const SentencePieceModel& model, Problems& problems) {
  absl::flat_hash_set<absl::string_view> seen;
  size_t unknown = 0, bytes = 0;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    unknown += piece.type == SentencePieceModel::Type::kUnknown ? 1 : 0;
    bytes += piece.type == SentencePieceModel::Type::kByte ? 1 : 0;
    if (!seen.insert(piece.text).second) problems.push_back(absl::StrCat("the piece '", piece.text, "' occurs twice"));
  }
  if (unknown != 1) problems.push_back(absl::StrCat("it has ", unknown, " pieces for unknown text: expected 1"));
  if (model.byte_fallback && bytes != 256) {
    problems.push_back(absl::StrCat("it has ", bytes, " pieces for single bytes: expected 256"));
  }
}

// Whether the first line is that of a tiktoken file, such as Llama 3 has: a token in base64 and its number.
bool IsRanks(absl::string_view file) {
  const absl::string_view line = file.substr(0, std::min(file.find('\n'), size_t{1000}));
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  std::string token;
  int rank = 0;
  return absl::SimpleAtoi(parts.second, &rank) && !parts.first.empty() && absl::Base64Unescape(parts.first, &token);
}

}  // namespace

absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(absl::string_view file, absl::string_view name) {
  SentencePieceModel model;
  Problems problems;
  bool has_trainer = false, has_normalizer = false;
  WireReader reader(file);
  while (reader.Next()) {
    has_trainer |= reader.field() == kTrainerField;
    has_normalizer |= reader.field() == kNormalizerField;
    switch (reader.field()) {
      case kPiecesField:
        ReadPiece(reader.bytes(), model, problems);
        break;
      case kTrainerField:
        ReadTrainer(reader.bytes(), model, problems);
        break;
      case kNormalizerField:
        ReadNormalizer(reader.bytes(), model, problems);
        break;
      case kDenormalizerField: {
        SentencePieceModel ignored;
        ReadNormalizer(reader.bytes(), ignored, problems);
        break;
      }
      default:
        break;
    }
  }
  if (model.pieces.empty()) {
    if (IsRanks(file)) {
      return absl::InvalidArgumentError(absl::StrCat(
          name,
          " has ranks of tokens in the form of tiktoken, which says nothing about how text is split; take the "
          "tokenizer.json of the folder that was made for transformers"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is neither a SentencePiece model nor a tokenizer.json",
        "; let transformers write a tokenizer.json: AutoTokenizer.from_pretrained(...).save_pretrained(...)"));
  }
  if (!reader.ok() || !has_trainer || !has_normalizer) {  // in a file, the settings follow the pieces
    problems.push_back(absl::StrCat("it is damaged or cut off after ", model.pieces.size(), " pieces"));
  }
  CheckPieces(model, problems);
  if (problems.empty()) return model;
  return absl::InvalidArgumentError(absl::StrCat(name, " is a SentencePiece model that cannot be used: ",
                                                 JoinFirst(problems, kProblemsShown, "; ", "; ", "problem"),
                                                 "; copy it again from its source"));
}

// Appends a second normalizer to the file. If a message has a field twice, protobuf uses the later value, and merges
// values that are messages themselves, so only add_dummy_prefix changes.
std::string WithoutPrefix(absl::string_view file) {
  constexpr char kNormalizer[] = {kNormalizerField << 3 | 2, 2, 3 << 3, 0};  // {add_dummy_prefix: false}
  return absl::StrCat(file, absl::string_view(kNormalizer, sizeof kNormalizer));
}

}  // namespace trainyard
