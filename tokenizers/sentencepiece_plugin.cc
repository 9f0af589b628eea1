// The implementation of the plugin. It includes nothing of protobuf or Abseil, because libsentencepiece has other
// versions of these libraries than we have.
#include "tokenizers/sentencepiece_plugin.h"

#include <dlfcn.h>
#include <sentencepiece_processor.h>

#include <exception>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

namespace trainyard {
namespace {

using sentencepiece::SentencePieceProcessor;
using sentencepiece::util::Status;

void Report(const std::string& message, SentencePieceText* error, void* to) {
  error(to, message.data(), message.size());
}

// Calls `function`, which returns a status, and reports whatever goes wrong.
template <typename Function>
bool Guarded(const Function& function, SentencePieceText* error, void* to) {
  try {
    const Status status = function();
    if (status.ok()) return true;
    Report(status.error_message(), error, to);
  } catch (const std::exception& exception) {
    Report(exception.what(), error, to);
  }
  return false;
}

void* Open(const char* model, size_t size, SentencePieceText* error, void* to) {
  std::unique_ptr<SentencePieceProcessor> processor;
  const auto load = [&] {
    processor = std::make_unique<SentencePieceProcessor>();
    return processor->LoadFromSerializedProto({model, size});
  };
  return Guarded(load, error, to) ? processor.release() : nullptr;
}

void Close(void* model) { delete static_cast<SentencePieceProcessor*>(model); }

void Encode(const void* model, const char* text, size_t size, SentencePieceIds* ids, SentencePieceText* error,
            void* to) {
  std::vector<int> encoded;
  const auto encode = [&] { return static_cast<const SentencePieceProcessor*>(model)->Encode({text, size}, &encoded); };
  if (Guarded(encode, error, to)) ids(to, encoded.data(), encoded.size());
}

void Decode(const void* model, const int32_t* ids, size_t count, SentencePieceText* text, SentencePieceText* error,
            void* to) {
  std::string decoded;
  const auto decode = [&] {
    const std::vector<int> copy(ids, ids + count);
    return static_cast<const SentencePieceProcessor*>(model)->Decode(copy, &decoded);
  };
  if (Guarded(decode, error, to)) text(to, decoded.data(), decoded.size());
}

// Reports the file of libsentencepiece, because that library has no function that returns its version. The file is the
// one that contains the type information of the class.
void Library(SentencePieceText* text, SentencePieceText* error, void* to) {
  Dl_info info = {};
  if (dladdr(&typeid(SentencePieceProcessor), &info) == 0 || info.dli_fname == nullptr) {
    return Report("the file of libsentencepiece is not known", error, to);
  }
  const std::string path = info.dli_fname;
  text(to, path.data(), path.size());
}

constexpr SentencePieceApi kApi = {
    .open = Open, .close = Close, .encode = Encode, .decode = Decode, .library = Library};

}  // namespace
}  // namespace trainyard

extern "C" __attribute__((visibility("default"))) const trainyard::SentencePieceApi* trainyard_sentencepiece(
    uint32_t interface) {
  return interface == trainyard::kSentencePieceInterface ? &trainyard::kApi : nullptr;
}
