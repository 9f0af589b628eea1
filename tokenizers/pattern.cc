#include "tokenizers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "tokenizers/pattern_syntax.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

std::string ErrorText(int error) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(error, text, sizeof text) < 0) return absl::StrCat("error ", error);
  return reinterpret_cast<const char*>(text);
}

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

}  // namespace

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
};

absl::StatusOr<Pattern> Pattern::Regex(absl::string_view expression) {
  Pattern pattern;
  pattern.text_ = std::string(expression);
  pattern.known_ = Recognize(expression);
  if (pattern.known_ != KnownPattern::kNone) return pattern;
  if (expression.empty() || expression.size() > limits::kTokenizerPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern has ", expression.size(), " bytes: expected 1 to ", limits::kTokenizerPatternBytes));
  }
  ASSIGN_OR_RETURN(const std::string translated, TranslatePattern(expression));
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (compiled->code == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern '", expression, "' is not valid: ", ErrorText(error)));
  }
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without it, matching is only slower
  compiled->context.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(compiled->context.get(), limits::kPatternSteps);
  pcre2_set_heap_limit(compiled->context.get(), limits::kPatternHeapKiB);
  pattern.compiled_ = std::move(compiled);
  return pattern;
}

Pattern Pattern::Literal(absl::string_view text) {
  Pattern pattern;
  pattern.text_ = std::string(text);
  return pattern;
}

absl::Status Pattern::Parts(absl::string_view text, Found found) const {
  if (known_ != KnownPattern::kNone) {
    const uint16_t* const classes = unicode::Classes();
    for (size_t at = 0; at < text.size();) {
      const size_t end = MatchEnd(known_, text, at, classes);
      found(text.substr(at, end - at), true);
      at = end;
    }
    return absl::OkStatus();
  }
  if (compiled_ != nullptr) return PartsOfRegex(text, found);
  size_t copied = 0;
  while (!text_.empty()) {
    const size_t at = text.find(text_, copied);
    if (at == absl::string_view::npos) break;
    if (at > copied) found(text.substr(copied, at - copied), false);
    found(text.substr(at, text_.size()), true);
    copied = at + text_.size();
  }
  if (copied < text.size()) found(text.substr(copied), false);
  return absl::OkStatus();
}

absl::Status Pattern::PartsOfRegex(absl::string_view text, Found found) const {
  const MatchData data(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data.get());
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t copied = 0, at = 0;
  bool has_matched = false;  // a match ended at `copied`
  while (at <= text.size()) {
    int result = pcre2_match(compiled_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(),
                             compiled_->context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = pcre2_match(compiled_->code.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           data.get(), compiled_->context.get());
    }
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result < 0) {
      return absl::ResourceExhaustedError(absl::StrCat("the pattern '", this->text_, "' fails on a text of ",
                                                       text.size(), " bytes: ", ErrorText(result),
                                                       "; split the text into documents"));
    }
    const size_t begin = ends[0], end = ends[1];
    // An empty match where the previous one ended does not count.
    if (begin == end && has_matched && begin == copied) {
      at = end < text.size() ? end + utf8::Length(static_cast<unsigned char>(text[end])) : end + 1;
      continue;
    }
    if (begin > copied) found(text.substr(copied, begin - copied), false);
    found(text.substr(begin, end - begin), true);
    copied = at = end;
    has_matched = true;
  }
  if (copied < text.size()) found(text.substr(copied), false);
  return absl::OkStatus();
}

}  // namespace trainyard
