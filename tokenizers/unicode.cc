#include "tokenizers/unicode.h"

#include <algorithm>
#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tokenizers/utf8.h"

namespace trainyard::unicode {
namespace {

struct CategoryRun {
  uint32_t first;
  uint8_t category;  // index into kCategoryNames
};
struct CodeRange {
  uint32_t first, last;
};
struct CombiningRange {
  uint32_t first, last;
  uint8_t combining_class;
};
struct Composition {
  uint32_t first, second, composed;
};
struct Change {
  uint32_t code;
  const char* text;
};
#include "tokenizers/unicode_tables.inc"

// In the order of tools/unicode_tables.py.
constexpr absl::string_view kCategoryNames =
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn";

// Hangul syllables are composed by arithmetic.
constexpr uint32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7;
constexpr uint32_t kNumLeads = 19, kNumVowels = 21, kNumTrails = 28;
constexpr uint32_t kNumSyllables = kNumLeads * kNumVowels * kNumTrails;

struct Tables {
  std::vector<uint16_t> classes = std::vector<uint16_t>(kCodes);
  absl::flat_hash_map<uint32_t, absl::string_view> canonical, compatibility, lower;
  absl::flat_hash_map<uint32_t, uint8_t> combining;
  absl::flat_hash_map<uint64_t, uint32_t> compositions;  // by first << 32 | second
};

template <size_t N>
void Mark(const CodeRange (&ranges)[N], Class bit, std::vector<uint16_t>& classes) {
  for (const CodeRange& range : ranges) {
    for (uint32_t code = range.first; code <= range.last; ++code) classes[code] |= bit;
  }
}

void MarkCategory(absl::string_view name, Class bit, std::vector<uint16_t>& classes) {
  for (const auto& [first, last] : RangesOfCategory(name)) {
    for (uint32_t code = first; code <= last; ++code) classes[code] |= bit;
  }
}

void FillNormalization(Tables& tables) {
  for (const Change& change : kCanonical) tables.canonical[change.code] = change.text;
  for (const Change& change : kCompatibility) tables.compatibility[change.code] = change.text;
  for (const Change& change : kLowerCase) tables.lower[change.code] = change.text;
  for (const CombiningRange& range : kCombining) {
    for (uint32_t code = range.first; code <= range.last; ++code) {
      tables.combining[code] = range.combining_class;
      tables.classes[code] |= kMark;
    }
  }
  std::vector<bool> joins(kCodes);
  for (const Composition& one : kCompositions) {
    tables.compositions[uint64_t{one.first} << 32 | one.second] = one.composed;
    joins[one.second] = true;
  }
  for (uint32_t code = kVowels; code < kTrails + kNumTrails; ++code) joins[code] = true;
  // A character is inert if NFC neither changes it nor joins it to the character before it. A character with a
  // decomposition is inert only if it has two parts, whose composition is the character again.
  for (uint32_t code = 0; code < kCodes; ++code) {
    if (joins[code] || (tables.classes[code] & kMark) != 0) continue;
    const auto found = tables.canonical.find(code);
    bool stays = found == tables.canonical.end();
    if (!stays) {
      size_t at = 0;
      const uint32_t first = utf8::Next(found->second, at);
      if (at < found->second.size()) {
        const uint32_t second = utf8::Next(found->second, at);
        // The character stays if its two parts compose to it again. They do not for U+212B, nor for U+01D5, whose
        // first part is itself composed.
        const auto composed = tables.compositions.find(uint64_t{first} << 32 | second);
        stays = at == found->second.size() && composed != tables.compositions.end() && composed->second == code;
      }
    }
    if (stays) tables.classes[code] |= kNfcInert;
  }
}

const Tables& TheTables() {
  static const Tables* const tables = [] {
    auto* const made = new Tables;
    std::vector<uint16_t>& classes = made->classes;
    Mark(kSpaces, kSpace, classes);
    Mark(kWordCharacters, kWord, classes);
    Mark(kPatternWordCharacters, kPatternWord, classes);
    Mark(kNumericCharacters, kNumeric, classes);
    Mark(kPunctuationCharacters, kPunctuation, classes);
    MarkCategory("L", kLetter, classes);
    MarkCategory("N", kNumber, classes);
    classes['\r'] |= kNewline;
    classes['\n'] |= kNewline;
    FillNormalization(*made);
    return made;
  }();
  return *tables;
}

// Sorts every run of marks by combining class, stably.
void OrderMarks(const Tables& tables, std::vector<uint32_t>& codes) {
  const auto is_mark = [&tables](uint32_t code) { return (tables.classes[code] & kMark) != 0; };
  for (auto at = codes.begin(); at != codes.end();) {
    at = std::find_if(at, codes.end(), is_mark);
    const auto end = std::find_if_not(at, codes.end(), is_mark);
    std::stable_sort(at, end, [&tables](uint32_t left, uint32_t right) {
      return tables.combining.at(left) < tables.combining.at(right);
    });
    at = end;
  }
}

std::vector<uint32_t> Decomposed(const Tables& tables, bool compatibility, absl::string_view text) {
  std::vector<uint32_t> codes;
  const auto add_all = [&codes](absl::string_view part) {
    for (size_t at = 0; at < part.size();) codes.push_back(utf8::Next(part, at));
  };
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = utf8::Next(text, at);
    if (code - kSyllables < kNumSyllables) {
      const uint32_t index = code - kSyllables;
      codes.push_back(kLeads + index / (kNumVowels * kNumTrails));
      codes.push_back(kVowels + index / kNumTrails % kNumVowels);
      if (index % kNumTrails != 0) codes.push_back(kTrails + index % kNumTrails);
      continue;
    }
    if (compatibility) {
      if (const auto found = tables.compatibility.find(code); found != tables.compatibility.end()) {
        add_all(found->second);
        continue;
      }
    }
    const auto found = tables.canonical.find(code);
    if (found == tables.canonical.end()) {
      codes.push_back(code);
    } else {
      add_all(found->second);
    }
  }
  OrderMarks(tables, codes);
  return codes;
}

// The character that the two compose to, or 0.
uint32_t ComposedOf(const Tables& tables, uint32_t first, uint32_t second) {
  if (first - kLeads < kNumLeads && second - kVowels < kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTrails;
  }
  if (first - kSyllables < kNumSyllables && (first - kSyllables) % kNumTrails == 0 &&
      second - kTrails - 1 < kNumTrails - 1) {
    return first + (second - kTrails);
  }
  const auto found = tables.compositions.find(uint64_t{first} << 32 | second);
  return found == tables.compositions.end() ? 0 : found->second;
}

void Compose(const Tables& tables, std::vector<uint32_t>& codes) {
  constexpr size_t kNone = ~size_t{0};
  size_t starter = kNone, size = 0;
  uint8_t last_class = 0;  // of the newest character that was not composed with the starter
  for (const uint32_t code : codes) {
    const auto found = tables.combining.find(code);
    const uint8_t combining_class = found == tables.combining.end() ? 0 : found->second;
    const bool adjacent = starter != kNone && starter + 1 == size;
    if (starter != kNone && (adjacent || (last_class < combining_class && last_class != 0))) {
      if (const uint32_t composed = ComposedOf(tables, codes[starter], code); composed != 0) {
        codes[starter] = composed;
        continue;
      }
    }
    if (combining_class == 0) starter = size;
    last_class = combining_class;
    codes[size++] = code;
  }
  codes.resize(size);
}

void AppendNormalized(const Tables& tables, Form form, absl::string_view text, std::string& out) {
  std::vector<uint32_t> codes = Decomposed(tables, form == Form::kNfkc || form == Form::kNfkd, text);
  if (form == Form::kNfc || form == Form::kNfkc) Compose(tables, codes);
  for (const uint32_t code : codes) utf8::Append(code, out);
}

// Most text is in NFC already, so only the parts around characters that are not inert are normalized.
std::string Nfc(const Tables& tables, absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0, last = 0;  // `last`: the newest inert character; the next characters may compose with it
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if ((tables.classes[utf8::Next(text, at)] & kNfcInert) != 0) {
      last = begin;
      continue;
    }
    while (at < text.size()) {
      const size_t before = at;
      if ((tables.classes[utf8::Next(text, at)] & kNfcInert) != 0) {
        at = before;
        break;
      }
    }
    out.append(text.data() + copied, last - copied);
    AppendNormalized(tables, Form::kNfc, text.substr(last, at - last), out);
    copied = last = at;
  }
  out.append(text.data() + copied, text.size() - copied);
  return out;
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

const uint16_t* Classes() { return TheTables().classes.data(); }

Ranges RangesOf(Class one) {
  const uint16_t* const classes = Classes();
  Ranges ranges;
  for (uint32_t code = 0; code < kCodes; ++code) {
    if ((classes[code] & one) == 0) continue;
    if (!ranges.empty() && ranges.back().second + 1 == code) {
      ranges.back().second = code;
    } else {
      ranges.emplace_back(code, code);
    }
  }
  return ranges;
}

Ranges RangesOfCategory(absl::string_view name) {
  const std::vector<absl::string_view> names = absl::StrSplit(kCategoryNames, ' ');
  Ranges ranges;
  for (size_t i = 0; i < std::size(kCategoryRuns); ++i) {
    const absl::string_view category = names[kCategoryRuns[i].category];
    if (category != name && category.substr(0, 1) != name) continue;
    const uint32_t last = (i + 1 < std::size(kCategoryRuns) ? kCategoryRuns[i + 1].first : kCodes) - 1;
    if (!ranges.empty() && ranges.back().second + 1 == kCategoryRuns[i].first) {
      ranges.back().second = last;
    } else {
      ranges.emplace_back(kCategoryRuns[i].first, last);
    }
  }
  return ranges;
}

std::string Normalize(Form form, absl::string_view text) {
  if (IsAscii(text)) return std::string(text);
  const Tables& tables = TheTables();
  if (form == Form::kNfc) return Nfc(tables, text);
  std::string out;
  out.reserve(text.size());
  AppendNormalized(tables, form, text, out);
  return out;
}

std::string Lower(absl::string_view text) {
  const Tables& tables = TheTables();
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t code = utf8::Next(text, at);
    const auto found = tables.lower.find(code);
    absl::StrAppend(&out, found == tables.lower.end() ? text.substr(begin, at - begin) : found->second);
  }
  return out;
}

}  // namespace trainyard::unicode
