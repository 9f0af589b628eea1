// Reading pre-tokenizers.
#include <iterator>

#include "common/limits.h"
#include "tokenizers/pre_tokenizer.h"

namespace trainyard {

PreTokenizer PreTokenizer::Read(const JsonPart& json) {
  PreTokenizer pre_tokenizer;
  if (!json.is_null()) pre_tokenizer.Add(json, 0);
  return pre_tokenizer;
}

void PreTokenizer::Add(const JsonPart& json, int depth) {
  const std::string type = json.String("type");
  if (type == "Sequence") {
    if (depth > 4) return json.Problem("sequences are nested too deeply");
    for (const JsonPart& element : json.Elements("pretokenizers")) Add(element, depth + 1);
    return;
  }
  if (steps_.size() >= limits::kTokenizerSteps) return json.Problem("the sequence is too long");
  if (is_byte_level()) return json.Problem("a pre-tokenizer after ByteLevel is not supported");
  Step step;
  if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    step.add_prefix_space = json.Bool("add_prefix_space", true);
    step.splits = json.Bool("use_regex", true);
    step.pattern = *Pattern::Regex(kGpt2Pattern);  // never fails for a known pattern
  } else if (type == "Split") {
    step = ReadSplit(json);
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.behavior = json.Bool("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous;
  } else if (type == "Metaspace") {
    step = ReadMetaspace(json);
  } else if (type == "Whitespace") {
    step.kind = Kind::kWhitespace;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
    step.behavior = Behavior::kRemoved;
  } else if (type == "Punctuation") {
    step.kind = Kind::kPunctuation;
    step.behavior = ReadBehavior(json);
  } else {
    return json.Unsupported("pre-tokenizer", type,
                            "ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation, Sequence");
  }
  steps_.push_back(std::move(step));
}

PreTokenizer::Step PreTokenizer::ReadMetaspace(const JsonPart& json) {
  Step step;
  step.kind = Kind::kMetaspace;
  step.replacement = json.String("replacement", "\u2581");
  if (step.replacement.empty()) json.Problem("replacement must be a character");
  step.splits = json.Bool("split", true);
  // Files written before 2024 have add_prefix_space instead.
  const std::string scheme = json.String("prepend_scheme", json.Bool("add_prefix_space", true) ? "always" : "never");
  if (scheme == "always") {
    step.scheme = Scheme::kAlways;
  } else if (scheme == "first") {
    step.scheme = Scheme::kFirst;
  } else if (scheme == "never") {
    step.scheme = Scheme::kNever;
  } else {
    json.Unsupported("prepend_scheme", scheme, "always, first, never");
  }
  return step;
}

PreTokenizer::Step PreTokenizer::ReadSplit(const JsonPart& json) {
  Step step;
  step.kind = Kind::kSplit;
  step.pattern = json.PatternAt("pattern");
  step.behavior = ReadBehavior(json);
  step.invert = json.Bool("invert", false);
  return step;
}

PreTokenizer::Behavior PreTokenizer::ReadBehavior(const JsonPart& json) {
  constexpr std::pair<absl::string_view, Behavior> kNames[] = {{"Removed", Behavior::kRemoved},
                                                               {"Isolated", Behavior::kIsolated},
                                                               {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                               {"MergedWithNext", Behavior::kMergedWithNext},
                                                               {"Contiguous", Behavior::kContiguous}};
  const std::string name = json.String("behavior", "Isolated");
  for (const auto& [known, behavior] : kNames) {
    if (name == known) return behavior;
  }
  json.Unsupported("behavior", name, "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
  return Behavior::kIsolated;
}

}  // namespace trainyard
