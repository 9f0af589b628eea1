// Reads a configuration file of another program, in YAML or JSON: finds out which program it belongs to, and reads its
// keys by the rules (key_rule.h). Reports every key without a rule, with the nearest known key, and every value of a
// wrong form.
//
//   absl::optional<Dialect> dialect = DetectDialect(*root);   // none: a job file, or an unknown kind
//   Reading reading = ReadKeys(*root, *dialect, "ds.json", &problems);
//
// JSON is read as YAML, which includes it; numbers may have the form 5e8, and `true` may be in quotes. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/problems.h"
#include "common/yaml_parser.h"
#include "foreign/key_rule.h"

namespace trainyard::foreign {

// A key of the file with its value.
struct Value {
  const KeyRule* rule = nullptr;
  std::string key;         // as in the file, dotted: "fsdp_config.fsdp_version"
  std::string text;        // the value as messages show it: on one line, and cut if it is long
  std::string whole = {};  // a scalar as it is in the file
  Position position = {};
  bool is_auto = false;
  bool is_null = false;
  bool is_path = false;  // the name of a file with a group of keys, instead of the group
  bool is_off = false;   // a group that is empty, false, or has `enabled: false`
  // The value, in the field that belongs to the form of its rule; none if the value does not have that form.
  absl::optional<bool> flag = absl::nullopt;
  absl::optional<double> number = absl::nullopt;
  std::vector<std::string> items = {};  // of a list; or the words of a text that stands for a list

  // Whether the value is one of `rule->inert`, null, or a group that is off.
  bool IsInert() const;
};

struct Reading {
  std::vector<Value> values;  // in the order of the file

  // Returns the value of this key, named as in the tables of rules; null: it is not given, or its value is null.
  const Value* Find(absl::string_view canonical_key) const;
};

// Parses YAML or JSON; JSON may contain tabs between its tokens. Null, with an error in `problems`: `text` is neither.
yaml::NodePtr ParseDocument(absl::string_view text, const std::string& file_name, Problems* problems);

// The program that the file belongs to; none if it is a job file, or of an unknown kind.
absl::optional<Dialect> DetectDialect(const yaml::Node& root);

// Whether any key at the top is a key of job files.
bool HasJobKeys(const yaml::Node& root);

Reading ReadKeys(const yaml::Node& root, Dialect dialect, const std::string& file_name, Problems* problems);

}  // namespace trainyard::foreign
