// Reads the part of YAML that files written by hand need: maps, lists, and values that stand on one line. What is left
// out is refused with a sentence, never guessed: values over several lines (an unclosed quote must not swallow the rest
// of a file), tabs, tags, directives, block scalars, explicit keys, several documents. So whatever this accepts, every
// YAML reader accepts, with the same texts; tests/interop/yaml_test.py compares it with PyYAML on mutated files.
//
//   yaml::ParseError error;
//   yaml::NodePtr root = yaml::Parse("name: tiny\n", &error);   // null: `error` says what is wrong, and where
//
// Pure. Used by the reader of strict_yaml.h.
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
  bool quoted = false;  // of a scalar: it stands in quotes, so it is a text whatever it looks like
  int line = 0;         // where it begins, both from 1; an alias has the place of what it names
  int column = 0;
  std::vector<NodePtr> items;                        // of a list
  std::vector<std::pair<NodePtr, NodePtr>> entries;  // of a map: keys are scalars, and may repeat

  bool IsMap() const { return kind == Kind::kMap; }
  bool IsList() const { return kind == Kind::kList; }
  bool IsScalar() const { return kind == Kind::kScalar && !IsNothing(); }
  // No value, or a word for none: ~, null.
  bool IsNothing() const;
};

struct ParseError {
  int line = 0;
  int column = 0;
  std::string text;
};

// The one document of `text`, of kind kNothing where it is empty. Null: see `error`.
NodePtr Parse(absl::string_view text, ParseError* error);

}  // namespace trainyard::yaml
