#include "tokenizers/normalizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

absl::string_view Stripped(absl::string_view text, bool left, bool right) {
  const uint16_t* const classes = unicode::Classes();
  while (left && !text.empty()) {
    size_t at = 0;
    if ((classes[utf8::Next(text, at)] & unicode::kSpace) == 0) break;
    text.remove_prefix(at);
  }
  while (right && !text.empty()) {
    const size_t begin = utf8::Previous(text, text.size());
    size_t at = begin;
    if ((classes[utf8::Next(text, at)] & unicode::kSpace) == 0) break;
    text = text.substr(0, begin);
  }
  return text;
}

}  // namespace

Normalizer Normalizer::Read(const JsonPart& json) {
  Normalizer normalizer;
  if (!json.is_null()) normalizer.Add(json, 0);
  return normalizer;
}

void Normalizer::Add(const JsonPart& json, int depth) {
  const std::string type = json.String("type");
  if (type == "Sequence") {
    if (depth > 4) return json.Problem("sequences are nested too deeply");
    for (const JsonPart& element : json.Elements("normalizers")) Add(element, depth + 1);
    return;
  }
  if (steps_.size() >= limits::kTokenizerSteps) return json.Problem("the sequence is too long");
  using unicode::Form;
  for (const auto& [name, form] :
       {std::pair("NFC", Form::kNfc), {"NFD", Form::kNfd}, {"NFKC", Form::kNfkc}, {"NFKD", Form::kNfkd}}) {
    if (type == name) {
      steps_.push_back({.kind = Kind::kForm, .form = form});
      return;
    }
  }
  if (type == "Lowercase") {
    steps_.push_back({.kind = Kind::kLowercase});
  } else if (type == "Strip") {
    steps_.push_back(
        {.kind = Kind::kStrip, .left = json.Bool("strip_left", true), .right = json.Bool("strip_right", true)});
  } else if (type == "Replace") {
    steps_.push_back({.kind = Kind::kReplace, .pattern = json.PatternAt("pattern"), .content = json.String("content")});
  } else if (type == "Prepend") {
    steps_.push_back({.kind = Kind::kPrepend, .content = json.String("prepend")});
  } else {
    json.Unsupported("normalizer", type, "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Replace, Prepend, Sequence");
  }
}

absl::StatusOr<std::string> Normalizer::Apply(absl::string_view text, bool continues) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kForm:
        out = unicode::Normalize(step.form, out);
        break;
      case Kind::kLowercase:
        out = unicode::Lower(out);
        break;
      case Kind::kStrip:
        out = std::string(Stripped(out, step.left, step.right));
        break;
      case Kind::kPrepend:
        if (!out.empty() && !continues) out.insert(0, step.content);
        break;
      case Kind::kReplace: {
        std::string replaced;
        replaced.reserve(out.size());
        RETURN_IF_ERROR(step.pattern.Parts(out, [&](absl::string_view part, bool is_match) {
          absl::StrAppend(&replaced, is_match ? absl::string_view(step.content) : part);
        }));
        if (replaced.size() > limits::kTokenizerTextBytes) {
          return absl::ResourceExhaustedError("the normalized text is larger than 1 GiB; split it into documents");
        }
        out = std::move(replaced);
        break;
      }
    }
  }
  return out;
}

bool Normalizer::WorksByLines() const {
  return std::all_of(steps_.begin(), steps_.end(), [](const Step& step) {
    if (step.kind == Kind::kStrip) return false;
    if (step.kind != Kind::kReplace) return true;
    return step.pattern.is_literal() && !absl::StrContains(step.pattern.text(), "\n");
  });
}

}  // namespace trainyard
