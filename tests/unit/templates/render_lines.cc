// Renders templates for tests. Each line of standard input is an object, and each line of the output an answer:
//
//   {"template": "...", "variables": {...}}  ->  {"text": "...", "generated": [[begin, end], ...]} or {"error": "..."}
//
// `generated`: the bytes of `text` that each {% generation %} block has written.
#include <iostream>
#include <nlohmann/json.hpp>

#include "templates/interpreter.h"
#include "templates/json_value.h"
#include "templates/parser.h"

namespace trainyard::templates {
namespace {

using Json = nlohmann::ordered_json;

Json Failed(const absl::Status& status) { return {{"error", std::string(status.message())}}; }

Json Answer(const Json& request) {
  const absl::StatusOr<ParsedTemplate> parsed = ParseTemplate(request["template"].get<std::string>());
  if (!parsed.ok()) return Failed(parsed.status());
  Context context;
  for (const auto& [name, json] : request["variables"].items()) {
    const absl::StatusOr<Value> value = FromJson(json);
    if (!value.ok()) return Failed(value.status());
    context.emplace_back(name, *value);
  }
  const absl::StatusOr<Rendered> rendered = RenderTemplate(*parsed, context);
  if (!rendered.ok()) return Failed(rendered.status());
  return {{"text", rendered->text}, {"generated", rendered->generated}};
}

int Run() {
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!request.is_object() || !request.contains("template") || !request.contains("variables")) return 2;
    std::cout << Answer(request).dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace trainyard::templates

int main() { return trainyard::templates::Run(); }
