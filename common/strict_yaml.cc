#include "common/strict_yaml.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/yaml_parser.h"
#include "common/yaml_schema.h"

namespace trainyard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

using yaml::Node;

const char* KindOf(const Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsList()) return "a list";
  if (node.IsScalar()) return "a single value";
  return "nothing";
}

// One pass over one document. A scalar with a problem does not change its field; of a list, the valid elements are set.
class Reader {
 public:
  Reader(const YamlSource& source, const Descriptor& root, Problems* problems, Positions* positions)
      : source_(source), root_(root), problems_(*problems), positions_(positions) {}

  void ReadMap(const Node& node, const std::string& path, Message* message) {
    std::set<std::string> seen;
    for (const auto& [key_node, value] : node.entries) {
      if (key_node->IsNothing()) {
        Error(*key_node, path, "expected a key, found nothing");
        continue;
      }
      const std::string& key = key_node->text;
      std::string key_path = yaml::JoinKeys(path, key);
      if (!seen.insert(key).second) {
        Error(*key_node, key_path, "is given twice; remove one");
        continue;
      }
      const FieldDescriptor* field = yaml::FieldOfKey(*message->GetDescriptor(), key);
      if (field == nullptr) {
        Error(*key_node, path, UnknownKey(key, *message->GetDescriptor()));
        continue;
      }
      Remember(key_path, value->IsMap() || value->IsNothing() ? *key_node : *value);
      ReadField(*value, key_path, *field, message, *key_node);
    }
  }

  // `place` is the node whose position is reported if the value is missing.
  void ReadField(const Node& node, const std::string& path, const FieldDescriptor& field, Message* message,
                 const Node& place) {
    if (node.IsNothing()) {
      // An empty map, for example one whose keys are all commented out.
      if (field.message_type() != nullptr) return;
      Error(place, path, absl::StrCat("has no value; expected ", yaml::Expectation(field)));
      return;
    }
    const auto* reflection = message->GetReflection();
    // "auto" in quotes is the value of a text field. For other fields it means the same as without quotes.
    const bool may_be_text = node.quoted && field.type() == FieldDescriptor::TYPE_STRING;
    if (yaml::RuleOf(field).auto_() && node.IsScalar() && !may_be_text && node.text == "auto") {
      reflection->ClearField(message, &field);
      return;
    }
    if (field.is_repeated()) return ReadList(node, path, field, message);
    if (field.message_type() != nullptr) {
      if (node.IsScalar() && !yaml::RuleOf(field).shorthand_key().empty()) return ReadName(node, path, field, message);
      if (!node.IsMap()) return Mismatch(node, path, field);
      return ReadMap(node, path, reflection->MutableMessage(message, &field));
    }
    if (!node.IsScalar()) return Mismatch(node, path, field);
    std::string problem = yaml::SetScalar(ToScalar(node), field, message);
    if (!problem.empty()) Error(node, path, problem);
  }

  void Error(const Node& node, absl::string_view path, absl::string_view text) {
    problems_.Add({.is_warning = false, .position = At(node), .path = std::string(path), .text = std::string(text)});
  }

  Position At(const Node& node) const {
    if (omits_lines_) return {.file = source_.file_name, .line = 0, .column = 0};
    return {.file = source_.file_name, .line = node.line, .column = node.column};
  }

  void Remember(const std::string& path, const Node& node) {
    if (positions_ != nullptr) (*positions_)[path] = At(node);
  }

  // Reports no lines and columns: the source is one value from the command line.
  void OmitLines() { omits_lines_ = true; }

 private:
  // Reads a single name where the field is a map. The name becomes the value of the key that `shorthand_key` of the
  // field's rule names.
  void ReadName(const Node& node, const std::string& path, const FieldDescriptor& field, Message* message) {
    const std::string& key = yaml::RuleOf(field).shorthand_key();
    const FieldDescriptor* named = yaml::FieldOfKey(*field.message_type(), key);
    Remember(yaml::JoinKeys(path, key), node);
    std::string problem =
        yaml::SetScalar(ToScalar(node), *named, message->GetReflection()->MutableMessage(message, &field));
    if (!problem.empty()) Error(node, path, absl::StrCat(problem, "; or ", yaml::MapText(*field.message_type())));
  }

  yaml::Scalar ToScalar(const Node& node) const {
    return {.text = node.text, .quoted = node.quoted, .working_directory = source_.working_directory};
  }

  void Mismatch(const Node& node, const std::string& path, const FieldDescriptor& field) {
    std::string found = node.IsScalar() ? absl::StrCat("'", node.text.substr(0, 60), "'") : KindOf(node);
    Error(node, path, absl::StrCat("expected ", yaml::Expectation(field), ", found ", found));
  }

  void ReadList(const Node& node, const std::string& path, const FieldDescriptor& field, Message* message) {
    if (!node.IsList()) {
      std::string hint = node.IsScalar() ? absl::StrCat("; write [", node.text.substr(0, 60), "]") : "";
      Error(node, path, absl::StrCat("expected ", yaml::Expectation(field), ", found ", KindOf(node), hint));
      return;
    }
    message->GetReflection()->ClearField(message, &field);
    const v1::FieldRule& rule = yaml::RuleOf(field);
    if ((rule.has_min_items() && node.items.size() < rule.min_items()) ||
        (rule.has_max_items() && node.items.size() > rule.max_items())) {
      Error(node, path, absl::StrCat("expected ", yaml::Expectation(field), ", found a list of ", node.items.size()));
      return;
    }
    if (field.message_type() != nullptr) return ReadMaps(node, path, field, message);
    for (const yaml::NodePtr& item : node.items) {
      std::string problem =
          item->IsScalar() ? yaml::SetScalar(ToScalar(*item), field, message)
                           : absl::StrCat("expected ", yaml::Expectation(field), "; an element is ", KindOf(*item));
      if (!problem.empty()) Error(*item, path, problem);
    }
  }

  // The path of an element is "namespaces[0]".
  void ReadMaps(const Node& node, const std::string& path, const FieldDescriptor& field, Message* message) {
    for (size_t i = 0; i < node.items.size(); ++i) {
      const Node& item = *node.items[i];
      const std::string at = yaml::ElementPath(path, static_cast<int>(i));
      Remember(at, item);
      Message* element = message->GetReflection()->AddMessage(message, &field);
      if (item.IsMap()) {
        ReadMap(item, at, element);
      } else {
        Error(item, at, absl::StrCat("expected ", yaml::MapText(*field.message_type()), ", found ", KindOf(item)));
      }
    }
  }

  // Only the first unknown key in a kind of map is reported with the valid keys.
  std::string UnknownKey(const std::string& key, const Descriptor& message) {
    if (key == "<<") return "merge keys (<<) are not supported; write the keys out, or use *alias for the whole value";
    const bool is_first = listed_.insert(&message).second;
    return absl::StrCat("unknown key '", key.substr(0, 60), "'", yaml::UnknownKeyHelp(key, message, root_, is_first));
  }

  const YamlSource& source_;
  const Descriptor& root_;
  Problems& problems_;
  Positions* positions_;
  bool omits_lines_ = false;
  std::set<const Descriptor*> listed_;  // whose valid keys were reported
};

// Returns the root of the document in `source`, or adds a problem and returns null. `is_value`: the source is one value
// from the command line.
yaml::NodePtr Parse(const YamlSource& source, bool is_value, Problems* problems) {
  Position at{.file = source.file_name, .line = 0, .column = 0};
  std::string problem;
  if (source.text.size() > kYamlBytesMax) {
    problem = absl::StrCat("is ", source.text.size(), " bytes; at most ", kYamlBytesMax, " are read");
  } else {
    yaml::ParseError error;
    yaml::NodePtr root = yaml::Parse(source.text, &error);
    if (root != nullptr) return root;
    problem = error.text;
    if (!is_value) {
      at.line = error.line;
      at.column = error.column;
    }
  }
  problems->Add({.is_warning = false, .position = at, .path = "", .text = problem});
  return nullptr;
}

}  // namespace

void ReadYaml(const YamlSource& source, Message* out, Problems* problems, Positions* positions) {
  if (positions != nullptr) (*positions)[""] = {.file = source.file_name, .line = 0, .column = 0};
  yaml::NodePtr root = Parse(source, false, problems);
  if (root == nullptr) return;
  Reader reader(source, *out->GetDescriptor(), problems, positions);
  if (root->IsNothing()) return;  // an empty file sets no field
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
                                    yaml::UnknownKeyHelp(keys[i], *out->GetDescriptor(), root, true)));
    }
    at = yaml::JoinKeys(at, keys[i]);
    // Only the key that is set gets the new position: the maps that contain it keep their positions in the file.
    if (positions != nullptr && i + 1 == keys.size()) (*positions)[at] = place;
    if (i + 1 < keys.size()) {
      if (field->message_type() == nullptr || field->is_repeated()) {
        return error(at, absl::StrCat("is ", yaml::Expectation(*field), " and has no key '", keys[i + 1], "'"));
      }
      out = out->GetReflection()->MutableMessage(out, field);
      continue;
    }
    yaml::NodePtr value = Parse(source, true, problems);
    if (value == nullptr) return;
    // In a file, a map without a value sets nothing. Here, it would look as if it removed the map of the file.
    if (value->IsNothing() && field->message_type() != nullptr) {
      return error(at, absl::StrCat("has no value; expected ", yaml::Expectation(*field),
                                    "; to do without this key, remove it from the file"));
    }
    Reader reader(source, root, problems, positions);
    reader.OmitLines();
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
