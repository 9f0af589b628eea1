#include "tokenizers/pattern_syntax.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tokenizers/unicode.h"

namespace trainyard {
namespace {

unicode::Ranges Complement(const unicode::Ranges& ranges) {
  unicode::Ranges out;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next < unicode::kCodes) out.emplace_back(next, unicode::kCodes - 1);
  return out;
}

// The ranges as a class of PCRE2, without its brackets. Surrogates, which no text contains, are left out: PCRE2 refuses
// them.
std::string ClassText(const unicode::Ranges& ranges) {
  std::string out;
  const auto add = [&out](uint32_t first, uint32_t last) {
    if (first <= last) absl::StrAppendFormat(&out, R"(\x{%X}-\x{%X})", first, last);
  };
  for (const auto& [first, last] : ranges) {
    if (last < 0xD800 || first > 0xDFFF) {
      add(first, last);
      continue;
    }
    if (first < 0xD800) add(first, 0xD7FF);
    if (last > 0xDFFF) add(0xE000, last);
  }
  return out;
}

class Translator {
 public:
  explicit Translator(absl::string_view expression) : rest_(expression), whole_(expression) {}

  absl::StatusOr<std::string> Translate() {
    while (!rest_.empty() && error_.ok()) {
      const char c = rest_[0];
      if (c == '\\') {
        Escape();
      } else if (in_class_) {
        ClassCharacter(c);
      } else {
        Character(c);
      }
    }
    if (error_.ok() && in_class_) Refuse("a class without its ]");
    if (!error_.ok()) return error_;
    return out_;
  }

 private:
  void Refuse(absl::string_view what) {
    error_ = absl::InvalidArgumentError(
        absl::StrCat("the pattern '", whole_, "' has ", what, ", which is not supported in patterns of tokenizers"));
  }

  void Keep(size_t count = 1) {
    absl::StrAppend(&out_, rest_.substr(0, count));
    rest_.remove_prefix(count);
  }

  void ClassCharacter(char c) {
    if (c == '[' || rest_.substr(0, 2) == "&&") return Refuse("a class within a class");
    if (c == ']' && !class_is_empty_) in_class_ = false;
    class_is_empty_ = false;
    Keep();
  }

  void Character(char c) {
    if (c == '^' || c == '$') return Refuse(absl::StrCat("the anchor ", absl::string_view(&c, 1)));
    if (absl::StartsWith(rest_, "(?")) {
      for (absl::string_view known : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
        if (absl::StartsWith(rest_, known)) return Keep(known.size());
      }
      return Refuse(absl::StrCat("the group ", rest_.substr(0, 4)));
    }
    if (absl::StartsWith(rest_, "(*")) return Refuse("a verb of PCRE2");
    if (absl::StartsWith(rest_, "{,")) return Refuse("{,");  // a repetition in Oniguruma, plain text in PCRE2
    // {1,3}+ is a repetition of a repetition in Oniguruma, and a possessive repetition in PCRE2.
    if (absl::StartsWith(rest_, "}+")) return Refuse("}+");
    if (c == '[') {
      in_class_ = class_is_empty_ = true;
      return Keep(absl::StartsWith(rest_, "[^") ? 2 : 1);
    }
    Keep();
  }

  void Escape() {
    if (rest_.size() < 2) return Refuse("a \\ at its end");
    const char c = rest_[1];
    class_is_empty_ = false;
    switch (c) {
      case 's':
        return Class(unicode::RangesOf(unicode::kSpace), 2);
      case 'S':
        return Class(Complement(unicode::RangesOf(unicode::kSpace)), 2);
      case 'w':
        return Class(unicode::RangesOf(unicode::kPatternWord), 2);
      case 'W':
        return Class(Complement(unicode::RangesOf(unicode::kPatternWord)), 2);
      case 'd':
        return Class(unicode::RangesOfCategory("Nd"), 2);
      case 'D':
        return Class(Complement(unicode::RangesOfCategory("Nd")), 2);
      case 'p':
      case 'P':
        return Property(c == 'P');
      case 'v':
        absl::StrAppend(&out_, R"(\x0B)");  // PCRE2's \v is a class
        return rest_.remove_prefix(2);
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'x':
        return Keep(2);
      default:
        if (absl::ascii_isalnum(static_cast<unsigned char>(c))) return Refuse(absl::StrCat("\\", rest_.substr(1, 1)));
        return Keep(2);
    }
  }

  void Property(bool negated) {
    const size_t close = rest_.find('}');
    if (rest_.size() < 4 || rest_[2] != '{' || close == absl::string_view::npos) return Refuse("\\p without {NAME}");
    absl::string_view name = rest_.substr(3, close - 3);
    if (absl::StartsWith(name, "^")) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const unicode::Ranges ranges = unicode::RangesOfCategory(name);
    if (ranges.empty()) {
      return Refuse(absl::StrCat("\\p{", name, "} instead of a general category, such as L or Nd"));
    }
    Class(negated ? Complement(ranges) : ranges, close + 1);
  }

  void Class(const unicode::Ranges& ranges, size_t length) {
    rest_.remove_prefix(length);
    absl::StrAppend(&out_, in_class_ ? "" : "[", ClassText(ranges), in_class_ ? "" : "]");
    if (in_class_ && rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') Refuse("a range that begins with a class");
  }

  absl::string_view rest_;
  const absl::string_view whole_;
  std::string out_;
  bool in_class_ = false;
  bool class_is_empty_ = false;  // a ] here is a character
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(absl::string_view expression) {
  return Translator(expression).Translate();
}

}  // namespace trainyard
