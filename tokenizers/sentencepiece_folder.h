// Opens a tokenizer.model: alone, or as a part of a folder of transformers. Thread-safe. The files are untrusted input.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizers/bpe_file.h"
#include "tokenizers/sentencepiece_tokenizer.h"

namespace trainyard {

// `file`: the content of tokenizer.model; `name`: for messages; `config`: the object of the tokenizer_config.json next
// to it, or null if there is no such file; `around`: the special and added tokens that the files of the folder name.
// Possible errors: InvalidArgument: the file is not a SentencePiece model, or the folder uses something that is not
// supported; the message lists everything that is wrong. Also those of OpenSentencePiece.
absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> OpenSentencePieceModel(absl::string_view file,
                                                                               const std::string& name,
                                                                               const nlohmann::json& config,
                                                                               const BpeSurroundings& around);

}  // namespace trainyard
