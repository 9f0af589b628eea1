#include "common/strict_yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <exception>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/yaml_schema.h"

namespace trainyard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const char* KindOf(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (node.IsScalar()) return "a single value";
  return "nothing";
}

// One pass over one document. Fields with a problem stay as they were.
class Reader {
 public:
  Reader(const YamlSource& source, const Descriptor& root, Problems* problems, Positions* positions)
      : source_(source), root_(root), problems_(*problems), positions_(positions) {}

  void ReadMap(const YAML::Node& node, const std::string& path, Message* message) {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        Error(entry.first, path, absl::StrCat("expected a key, found ", KindOf(entry.first)));
        continue;
      }
      const std::string& key = entry.first.Scalar();
      std::string at = yaml::JoinKeys(path, key);
      if (!seen.insert(key).second) {
        Error(entry.first, at, "is given twice; remove one");
        continue;
      }
      const FieldDescriptor* field = yaml::FieldOfKey(*message->GetDescriptor(), key);
      if (field == nullptr) {
        Error(entry.first, path, UnknownKey(key, *message->GetDescriptor()));
        continue;
      }
      Remember(at, entry.second.IsMap() || entry.second.IsNull() ? entry.first : entry.second);
      ReadField(entry.second, at, *field, message, entry.first);
    }
  }

  // `place` is where to point when the value itself stands nowhere.
  void ReadField(const YAML::Node& node, const std::string& path, const FieldDescriptor& field, Message* message,
                 const YAML::Node& place) {
    if (node.IsNull()) {
      // A map all of whose keys are commented out is an empty map.
      if (field.message_type() != nullptr) return;
      Error(place, path, absl::StrCat("has no value; expected ", yaml::Expectation(field)));
      return;
    }
    const auto* reflection = message->GetReflection();
    if (yaml::RuleOf(field).auto_() && node.IsScalar() && node.Tag() != "!" && node.Scalar() == "auto") {
      reflection->ClearField(message, &field);
      return;
    }
    if (field.is_repeated()) return ReadList(node, path, field, message);
    if (field.message_type() != nullptr) {
      if (node.IsScalar() && !yaml::RuleOf(field).word_key().empty()) return ReadWord(node, path, field, message);
      if (!node.IsMap()) return Mismatch(node, path, field);
      return ReadMap(node, path, reflection->MutableMessage(message, &field));
    }
    if (!node.IsScalar()) return Mismatch(node, path, field);
    std::string wrong = yaml::SetScalar(ToScalar(node), field, message);
    if (!wrong.empty()) Error(node, path, wrong);
  }

  void Error(const YAML::Node& node, absl::string_view path, absl::string_view text) {
    problems_.Add(
        {.is_warning = false, .position = At(node.Mark()), .path = std::string(path), .text = std::string(text)});
  }

  Position At(const YAML::Mark& mark) const {
    if (mark.is_null() || is_value_) return {.file = source_.file_name, .line = 0, .column = 0};
    return {.file = source_.file_name, .line = mark.line + 1, .column = mark.column + 1};
  }

  void Remember(const std::string& path, const YAML::Node& node) {
    if (positions_ != nullptr) (*positions_)[path] = At(node.Mark());
  }

  // The source is one value of a command line, whose lines and columns mean nothing to its writer.
  void SourceIsValue() { is_value_ = true; }

 private:
  // A word that stands for a map: sets the one key of it that the field's rule names.
  void ReadWord(const YAML::Node& node, const std::string& path, const FieldDescriptor& field, Message* message) {
    const std::string& key = yaml::RuleOf(field).word_key();
    const FieldDescriptor* word = yaml::FieldOfKey(*field.message_type(), key);
    Remember(yaml::JoinKeys(path, key), node);
    std::string wrong =
        yaml::SetScalar(ToScalar(node), *word, message->GetReflection()->MutableMessage(message, &field));
    if (!wrong.empty()) Error(node, path, absl::StrCat(wrong, "; or ", yaml::MapText(*field.message_type())));
  }

  yaml::Scalar ToScalar(const YAML::Node& node) const {
    return {.text = node.Scalar(), .quoted = node.Tag() == "!", .working_directory = source_.working_directory};
  }

  void Mismatch(const YAML::Node& node, const std::string& path, const FieldDescriptor& field) {
    std::string found = node.IsScalar() ? absl::StrCat("'", node.Scalar().substr(0, 60), "'") : KindOf(node);
    Error(node, path, absl::StrCat("expected ", yaml::Expectation(field), ", found ", found));
  }

  void ReadList(const YAML::Node& node, const std::string& path, const FieldDescriptor& field, Message* message) {
    if (!node.IsSequence()) {
      std::string hint = node.IsScalar() ? absl::StrCat("; write [", node.Scalar().substr(0, 60), "]") : "";
      Error(node, path, absl::StrCat("expected ", yaml::Expectation(field), ", found ", KindOf(node), hint));
      return;
    }
    message->GetReflection()->ClearField(message, &field);
    const v1::FieldRule& rule = yaml::RuleOf(field);
    if ((rule.has_min_items() && node.size() < rule.min_items()) ||
        (rule.has_max_items() && node.size() > rule.max_items())) {
      Error(node, path, absl::StrCat("expected ", yaml::Expectation(field), ", found a list of ", node.size()));
      return;
    }
    for (const YAML::Node& item : node) {
      std::string wrong = item.IsScalar()
                              ? yaml::SetScalar(ToScalar(item), field, message)
                              : absl::StrCat("expected ", yaml::Expectation(field), ", found ", KindOf(item), " in it");
      if (!wrong.empty()) Error(item, path, wrong);
    }
  }

  std::string UnknownKey(const std::string& key, const Descriptor& message) const {
    if (key == "<<") return "merge keys (<<) are not read; write the keys out, or name the whole value by *alias";
    return absl::StrCat("unknown key '", key.substr(0, 60), "'", yaml::UnknownKeyHelp(key, message, root_));
  }

  const YamlSource& source_;
  const Descriptor& root_;
  Problems& problems_;
  Positions* positions_;
  bool is_value_ = false;
};

// Where the text stops being UTF-8 or holds a control character that no YAML text may hold.
absl::optional<std::pair<Position, std::string>> FindBadByte(const YamlSource& source) {
  Position at{.file = source.file_name, .line = 1, .column = 1};
  absl::string_view text = source.text;
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = static_cast<uint8_t>(text[i]);
    size_t length = lead < 0x80                   ? 1
                    : lead >= 0xC2 && lead < 0xE0 ? 2
                    : (lead & 0xF0) == 0xE0       ? 3
                    : lead >= 0xF0 && lead < 0xF5 ? 4
                                                  : 0;
    bool good = length > 0 && i + length <= text.size();
    for (size_t j = 1; good && j < length; ++j) good = (static_cast<uint8_t>(text[i + j]) & 0xC0) == 0x80;
    if (good && length == 3) {
      const uint8_t next = static_cast<uint8_t>(text[i + 1]);
      good = !(lead == 0xE0 && next < 0xA0) && !(lead == 0xED && next >= 0xA0);
    }
    if (good && length == 4) {
      const uint8_t next = static_cast<uint8_t>(text[i + 1]);
      good = !(lead == 0xF0 && next < 0x90) && !(lead == 0xF4 && next >= 0x90);
    }
    if (!good) return std::pair(at, std::string("is not UTF-8 text"));
    if (lead < 0x20 && lead != '\n' && lead != '\r' && lead != '\t') {
      return std::pair(at, absl::StrCat("holds the control character ", lead, ", which YAML does not allow"));
    }
    ++at.column;
    if (lead == '\n') {
      ++at.line;
      at.column = 1;
    }
    i += length;
  }
  return absl::nullopt;
}

// Notes where the document that is being parsed starts; keeps nothing else of it.
class StartOfDocument final : public YAML::EventHandler {
 public:
  const YAML::Mark& mark() const { return mark_; }

  void OnDocumentStart(const YAML::Mark& mark) override { mark_ = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { mark_ = mark; }
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark mark_;
};

// yaml-cpp's own LoadAll comes never to an end where a stray bracket follows a document (it finds an empty document
// there again and again), and its Load does not look what follows. So documents are counted here, up to two.
absl::optional<YAML::Mark> SecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  StartOfDocument start;
  if (!parser.HandleNextDocument(start) || !parser.HandleNextDocument(start)) return absl::nullopt;
  return start.mark();
}

// The one document of a text, or nothing and a problem.
absl::optional<YAML::Node> Parse(const YamlSource& source, bool is_value, Problems* problems) {
  auto error = [&](Position at, absl::string_view text) {
    if (is_value) at = {.file = source.file_name, .line = 0, .column = 0};
    problems->Add({.is_warning = false, .position = at, .path = "", .text = std::string(text)});
    return absl::nullopt;
  };
  const Position whole{.file = source.file_name, .line = 0, .column = 0};
  if (source.text.size() > kYamlBytesMax) {
    return error(whole, absl::StrCat("is ", source.text.size(), " bytes; at most ", kYamlBytesMax, " are read"));
  }
  if (auto bad = FindBadByte(source)) return error(bad->first, bad->second);
  try {
    const std::string text(source.text);
    if (auto second = SecondDocument(text)) {
      return error({.file = source.file_name, .line = second->line + 1, .column = second->column + 1},
                   "goes on after its end, or holds a second document; keep one a file");
    }
    return YAML::Load(text);
  } catch (const YAML::Exception& e) {
    if (e.mark.is_null()) return error(whole, absl::StrCat("is not valid YAML: ", e.msg));
    return error({.file = source.file_name, .line = e.mark.line + 1, .column = e.mark.column + 1},
                 absl::StrCat("is not valid YAML: ", e.msg));
  } catch (const std::exception& e) {
    return error(whole, absl::StrCat("is not valid YAML: ", e.what()));
  }
}

}  // namespace

void ReadYaml(const YamlSource& source, Message* out, Problems* problems, Positions* positions) {
  if (positions != nullptr) (*positions)[""] = {.file = source.file_name, .line = 0, .column = 0};
  absl::optional<YAML::Node> root = Parse(source, false, problems);
  if (!root.has_value()) return;
  Reader reader(source, *out->GetDescriptor(), problems, positions);
  if (root->IsNull()) return;  // an empty file gives nothing
  if (!root->IsMap()) {
    reader.Error(*root, "", absl::StrCat("expected ", yaml::MapText(*out->GetDescriptor()), "; found ", KindOf(*root)));
    return;
  }
  reader.ReadMap(*root, "", out);
}

void SetYamlKey(absl::string_view path, const YamlSource& source, Message* out, Problems* problems,
                Positions* positions) {
  const Descriptor& root = *out->GetDescriptor();
  const Position place{.file = source.file_name, .line = 0, .column = 0};
  auto error = [&](absl::string_view at, absl::string_view text) {
    problems->Add({.is_warning = false, .position = place, .path = std::string(at), .text = std::string(text)});
  };
  std::vector<std::string> keys = absl::StrSplit(path, '.');
  std::string at;
  for (size_t i = 0; i < keys.size(); ++i) {
    const FieldDescriptor* field = yaml::FieldOfKey(*out->GetDescriptor(), keys[i]);
    if (field == nullptr) {
      return error(at, absl::StrCat("unknown key '", keys[i].substr(0, 60), "'",
                                    yaml::UnknownKeyHelp(keys[i], *out->GetDescriptor(), root)));
    }
    at = yaml::JoinKeys(at, keys[i]);
    // A map that stands in the file keeps its place there.
    if (positions != nullptr && i + 1 == keys.size()) (*positions)[at] = place;
    if (i + 1 < keys.size()) {
      if (field->message_type() == nullptr || field->is_repeated()) {
        return error(at, absl::StrCat("is ", yaml::Expectation(*field), " and has no key '", keys[i + 1], "'"));
      }
      out = out->GetReflection()->MutableMessage(out, field);
      continue;
    }
    absl::optional<YAML::Node> value = Parse(source, true, problems);
    if (!value.has_value()) return;
    Reader reader(source, root, problems, positions);
    reader.SourceIsValue();
    reader.ReadField(*value, at, *field, out, *value);
  }
}

absl::Status ReadYamlFile(const std::string& path, Message* out) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kYamlBytesMax));
  Problems problems;
  Positions positions;
  ReadYaml({.text = text, .file_name = path, .working_directory = WorkingDirectory()}, out, &problems, &positions);
  CheckRules(*out, positions, &problems);
  return problems.ToStatus();
}

}  // namespace trainyard
