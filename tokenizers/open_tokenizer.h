// Opens the tokenizer of a folder that transformers wrote, or of one file. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tokenizers/tokenizer.h"

namespace trainyard {

// `path`: tokenizer.json or tokenizer.model, or a folder that contains one of them (tokenizer.json is preferred). The
// tokenizer_config.json in the same folder names the special tokens. "bytes": the tokenizer of bytes.
// Possible errors: NotFound: there is no such file, or none in the folder; PermissionDenied; InvalidArgument: the file
// is not a tokenizer, or of a kind that is not supported; ResourceExhausted: the file is too large.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path);

}  // namespace trainyard
