// The interface of libtrainyard_sentencepiece.so, which wraps libsentencepiece. Debian's libsentencepiece contains and
// exports a protobuf of another version than ours. Protobuf's check of versions would abort a program that links both.
// sentencepiece_loader.h loads this library so that libsentencepiece sees its own protobuf, and other libraries do
// not see that protobuf.
//
// Only C types cross the interface, and no exception does. Increment kSentencePieceInterface after every change.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trainyard {

inline constexpr uint32_t kSentencePieceInterface = 2;

// Receives a result, which is valid only during the call. `to` is the pointer that the caller passed.
using SentencePieceIds = void(void* to, const int32_t* ids, size_t count);
using SentencePieceText = void(void* to, const char* text, size_t size);

struct SentencePieceApi {
  // Opens the content of a tokenizer.model. After an error, calls `error` with the reason and returns null.
  void* (*open)(const char* model, size_t size, SentencePieceText* error, void* to);
  void (*close)(void* model);
  // Calls `ids` once, or `error`. REQUIRES: valid UTF-8.
  void (*encode)(const void* model, const char* text, size_t size, SentencePieceIds* ids, SentencePieceText* error,
                 void* to);
  // Calls `text` once, or `error`. REQUIRES: every id is one of the model.
  void (*decode)(const void* model, const int32_t* ids, size_t count, SentencePieceText* text, SentencePieceText* error,
                 void* to);
  // Calls `text` once with the path of the libsentencepiece that is loaded, or `error`.
  void (*library)(SentencePieceText* text, SentencePieceText* error, void* to);
};

// The function that the library exports. It returns null unless `interface` is the library's own number.
using SentencePieceFunction = const SentencePieceApi*(uint32_t interface);
inline constexpr char kSentencePieceSymbol[] = "trainyard_sentencepiece";

}  // namespace trainyard
