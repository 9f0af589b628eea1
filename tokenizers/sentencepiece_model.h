// Reads from the file of a SentencePiece model those settings that libsentencepiece does not report, and checks what
// libsentencepiece does not check. The file is a message of protobuf; it is read here without protobuf, because engine
// targets may not link protobuf. Pure and thread-safe. The files are untrusted input.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct SentencePieceModel {
  // Numbers as in the file.
  enum class Kind { kUnigram = 1, kBpe = 2, kWord = 3, kCharacter = 4 };
  enum class Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
  struct Piece {
    std::string text;
    Type type = Type::kNormal;
  };

  std::vector<Piece> pieces;  // by id
  Kind kind = Kind::kUnigram;
  std::string unknown = "<unk>", begin = "<s>", end = "</s>", padding = "<pad>";  // names of special pieces
  bool byte_fallback = false;
  bool space_is_suffix = false;
  std::string normalization;    // nmt_nfkc, identity or another name
  bool has_characters = false;  // the model has a table of characters that are replaced
  bool adds_prefix = true;      // a space before every text
  bool removes_spaces = true;   // at the ends of a text, and double ones
  bool escapes_spaces = true;   // by U+2581
};

// `name`: for messages. Possible errors: InvalidArgument: the file is not a valid model; the message lists why.
absl::StatusOr<SentencePieceModel> ReadSentencePieceModel(absl::string_view file, absl::string_view name);

// Returns the file of the same model with the setting that no space is put before a text.
std::string WithoutPrefix(absl::string_view file);

}  // namespace trainyard
