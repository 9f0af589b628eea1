// Parses the part of YAML that files written by hand need: maps, lists, and values on one line. Everything else is
// rejected with an explanation: values over several lines (an unclosed quote must not swallow the rest of a file),
// tabs, tags, directives, block scalars, explicit keys, several documents. Every YAML reader therefore accepts what
// this parser accepts, with the same values; tests/interop/yaml_test.py compares this parser with PyYAML on mutated
// files.
//
//   yaml::ParseError error;
//   yaml::NodePtr root = yaml::Parse("name: tiny\n", &error);   // null: `error` says what is wrong, and where
//
// Pure. Used by strict_yaml.h.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::yaml {

struct Node;
using NodePtr = std::shared_ptr<const Node>;

struct Node {
  enum class Kind { kNothing, kScalar, kMap, kList };

  Kind kind = Kind::kNothing;
  std::string text;     // of a scalar
  bool quoted = false;  // of a scalar: it is in quotes, and therefore a string
  int line = 0;         // where the node begins, counted from 1; an alias has the position of its anchor
  int column = 0;
  std::vector<NodePtr> items;                        // of a list
  std::vector<std::pair<NodePtr, NodePtr>> entries;  // of a map: keys are scalars and may be duplicates

  bool IsMap() const { return kind == Kind::kMap; }
  bool IsList() const { return kind == Kind::kList; }
  bool IsScalar() const { return kind == Kind::kScalar && !IsNothing(); }
  // No value, or one of the spellings of null: ~, null, Null, NULL.
  bool IsNothing() const;
};

struct ParseError {
  int line = 0;
  int column = 0;
  std::string text;
};

// The document in `text`, of kind kNothing if it is empty. Returns null and sets `error` on a problem.
NodePtr Parse(absl::string_view text, ParseError* error);

}  // namespace trainyard::yaml
