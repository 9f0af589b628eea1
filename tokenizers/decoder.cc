#include "tokenizers/decoder.h"

#include <algorithm>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/limits.h"
#include "tokenizers/byte_letters.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

using Tokens = std::vector<std::string>;

Tokens FromLetters(const Tokens& tokens) {
  std::string all, bytes;
  for (const std::string& token : tokens) all += FromByteLetters(token, bytes) ? bytes : token;
  return {utf8::Replaced(all)};
}

void FromMetaspace(absl::string_view replacement, bool drops_prefix, Tokens& tokens) {
  bool first = true;
  for (std::string& token : tokens) {
    token = absl::StrReplaceAll(token, {{replacement, first && drops_prefix ? "" : " "}});
    first = false;
  }
}

// The byte of a token such as <0x0A>, or -1.
int ByteOfToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return -1;
    byte =
        byte * 16 + (absl::ascii_isdigit(static_cast<unsigned char>(c)) ? c - '0' : absl::ascii_tolower(c) - 'a' + 10);
  }
  return byte;
}

// Each run of byte tokens becomes its text, or one U+FFFD for each byte if the run as a whole is not valid UTF-8.
Tokens FromBytes(const Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (utf8::ValidPrefix(bytes) == bytes.size()) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const int byte = ByteOfToken(token); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(token);
    }
  }
  flush();
  return out;
}

void Strip(absl::string_view content, size_t start, size_t stop, std::string& token) {
  absl::string_view text = token;
  for (size_t i = 0; i < start && absl::StartsWith(text, content); ++i) text.remove_prefix(content.size());
  for (size_t i = 0; i < stop && absl::EndsWith(text, content); ++i) text.remove_suffix(content.size());
  token = std::string(text);
}

void Replace(const Pattern& pattern, absl::string_view content, Tokens& tokens) {
  for (std::string& token : tokens) {
    std::string replaced;
    const absl::Status status = pattern.Parts(
        token, [&](absl::string_view part, bool is_match) { absl::StrAppend(&replaced, is_match ? content : part); });
    if (status.ok()) token = std::move(replaced);
  }
}

void WithoutSuffixes(absl::string_view suffix, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size() && !suffix.empty(); ++i) {
    tokens[i] = absl::StrReplaceAll(tokens[i], {{suffix, i + 1 == tokens.size() ? "" : " "}});
  }
}

}  // namespace

TokenDecoder TokenDecoder::Read(const JsonPart& json) {
  TokenDecoder decoder;
  decoder.joins_with_spaces_ = json.is_null();
  if (!json.is_null()) decoder.Add(json, 0);
  return decoder;
}

void TokenDecoder::Add(const JsonPart& json, int depth) {
  const std::string type = json.String("type");
  if (type == "Sequence") {
    if (depth > 4) return json.Problem("sequences are nested too deeply");
    for (const JsonPart& element : json.Elements("decoders")) Add(element, depth + 1);
    return;
  }
  if (steps_.size() >= limits::kTokenizerSteps) return json.Problem("the sequence is too long");
  Step step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    step.content = json.String("replacement", "\u2581");
    step.drops_prefix =
        json.String("prepend_scheme", json.Bool("add_prefix_space", true) ? "always" : "never") != "never";
    if (step.content.empty()) json.Problem("replacement must be a character");
  } else if (type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (type == "Strip") {
    step.kind = Kind::kStrip;
    step.content = json.String("content");
    step.start = static_cast<size_t>(std::max<int64_t>(0, json.Int("start", 0)));
    step.stop = static_cast<size_t>(std::max<int64_t>(0, json.Int("stop", 0)));
    if (step.content.empty()) json.Problem("content must be a character");
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    step.pattern = json.PatternAt("pattern");
    step.content = json.String("content");
  } else if (type == "BPEDecoder") {
    step.kind = Kind::kBpe;
    step.content = json.String("suffix", "</w>");
  } else {
    return json.Unsupported("decoder", type,
                            "ByteLevel, Metaspace, ByteFallback, Fuse, Strip, Replace, BPEDecoder, Sequence");
  }
  steps_.push_back(std::move(step));
}

std::string TokenDecoder::Decode(std::vector<std::string> tokens) const {
  if (joins_with_spaces_) return absl::StrJoin(tokens, " ");
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel:
        tokens = FromLetters(tokens);
        break;
      case Kind::kMetaspace:
        FromMetaspace(step.content, step.drops_prefix, tokens);
        break;
      case Kind::kByteFallback:
        tokens = FromBytes(tokens);
        break;
      case Kind::kFuse:
        tokens = {absl::StrJoin(tokens, "")};
        break;
      case Kind::kStrip:
        for (std::string& token : tokens) Strip(step.content, step.start, step.stop, token);
        break;
      case Kind::kReplace:
        Replace(step.pattern, step.content, tokens);
        break;
      case Kind::kBpe:
        WithoutSuffixes(step.content, tokens);
        break;
    }
  }
  return absl::StrJoin(tokens, "");
}

}  // namespace trainyard
