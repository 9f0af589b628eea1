// Loads libtrainyard_sentencepiece.so, and thereby libsentencepiece, when the first SentencePiece model is opened.
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tokenizers/sentencepiece_plugin.h"

namespace trainyard {

// The library next to this program, or in the parent folder (for test programs).
std::string DefaultSentencePiecePath();

// The functions of the library, which is never unloaded. Possible errors, which say what to do: NotFound: there is no
// such library; FailedPrecondition: the library or libsentencepiece cannot be loaded, or the library does not have
// `interface`; Unimplemented: this program is built with a sanitizer.
absl::StatusOr<const SentencePieceApi*> OpenSentencePiece(const std::string& path = DefaultSentencePiecePath(),
                                                          uint32_t interface = kSentencePieceInterface);

}  // namespace trainyard
