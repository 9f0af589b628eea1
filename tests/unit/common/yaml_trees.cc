// For tests/interop/yaml_test.py: reads texts from standard input, each after a line with its length in bytes, and
// prints the result of yaml_parser.h for each, one JSON value per line: {"error": ...}, or {"tree": ...} with maps as
// lists of pairs, so that keys may be duplicates and keep their order.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/yaml_parser.h"

namespace trainyard::yaml {
namespace {

using Json = nlohmann::json;

Json TreeOf(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNothing:
      return {{"text", ""}, {"quoted", false}};
    case Node::Kind::kScalar:
      return {{"text", node.text}, {"quoted", node.quoted}};
    case Node::Kind::kList: {
      Json list = Json::array();
      for (const NodePtr& item : node.items) list.push_back(TreeOf(*item));
      return {{"list", list}};
    }
    case Node::Kind::kMap:
      break;
  }
  Json map = Json::array();
  for (const auto& [key, value] : node.entries) map.push_back(Json::array({TreeOf(*key), TreeOf(*value)}));
  return {{"map", map}};
}

int Main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::string text(std::stoul(line), '\0');
    std::cin.read(text.data(), static_cast<std::streamsize>(text.size()));
    ParseError error;
    NodePtr root = Parse(text, &error);
    Json out = root != nullptr ? Json{{"tree", TreeOf(*root)}}
                               : Json{{"error", absl::StrCat(error.line, ":", error.column, ": ", error.text)}};
    puts(out.dump().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace trainyard::yaml

int main() { return trainyard::yaml::Main(); }
