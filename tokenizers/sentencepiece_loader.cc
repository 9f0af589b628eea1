#include "tokenizers/sentencepiece_loader.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace trainyard {
namespace {

constexpr char kSharedLibrary[] = "libtrainyard_sentencepiece.so";
constexpr char kOrConvert[] = ", or let transformers write a tokenizer.json, which needs no library";

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif
#else
constexpr bool kIsSanitized = false;
#endif

}  // namespace

std::string DefaultSentencePiecePath() {
  const std::string folder = BinaryFolder();
  const std::string sibling = JoinPath(folder, kSharedLibrary);
  const std::string above = JoinPath(folder, absl::StrCat("../", kSharedLibrary));
  return !FileExists(sibling) && FileExists(above) ? above : sibling;
}

absl::StatusOr<const SentencePieceApi*> OpenSentencePiece(const std::string& path, uint32_t interface) {
  if (kIsSanitized) {
    return absl::UnimplementedError(
        "programs that are built with a sanitizer cannot load SentencePiece models, because sanitizers refuse "
        "RTLD_DEEPBIND; use a release build");
  }
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrCat(path,
                                            " does not exist, so SentencePiece models cannot be opened: build it "
                                            "by ./dev build, or copy it next to this program",
                                            kOrConvert));
  }
  // libsentencepiece and we have different versions of protobuf. RTLD_DEEPBIND makes libsentencepiece find its own
  // version first, and RTLD_LOCAL hides that version from other libraries.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the support of SentencePiece cannot be loaded: ", dlerror(),
        ". It needs Debian's package libsentencepiece0: run apt-get install libsentencepiece0", kOrConvert));
  }
  auto* function = reinterpret_cast<SentencePieceFunction*>(dlsym(library, kSentencePieceSymbol));
  const SentencePieceApi* api = function == nullptr ? nullptr : function(interface);
  if (api == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path,
                                                      function == nullptr
                                                          ? " is not the SentencePiece library of Trainyard"
                                                          : absl::StrCat(" does not have interface ", interface),
                                                      ": build it and this program from the same tree (./dev build)"));
  }
  return api;
}

}  // namespace trainyard
