#include "coordinator/http/openapi.h"

#include <google/protobuf/descriptor.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "coordinator/http/json_gateway.h"
#include "coordinator/rpc/access.h"
#include "google/rpc/status.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;
using nlohmann::json;

json Reference(const std::string& name) { return {{"$ref", "#/components/schemas/" + name}}; }

// Collects the schemas of messages and enums, each once, with everything that they refer to.
class Schemas {
 public:
  json ReferenceTo(const Descriptor& message) {
    if (seen_.insert(message.full_name()).second) waiting_.push_back(&message);
    return Reference(message.full_name());
  }

  json Take() {
    while (!waiting_.empty()) {
      const Descriptor& message = *waiting_.front();
      waiting_.pop_front();
      json properties = json::object();
      for (int i = 0; i < message.field_count(); ++i) {
        const FieldDescriptor& field = *message.field(i);
        properties[field.name()] = OfField(field);
      }
      schemas_[message.full_name()] = {{"type", "object"}, {"properties", std::move(properties)}};
    }
    return std::move(schemas_);
  }

 private:
  json OfField(const FieldDescriptor& field) {
    if (field.is_map()) {
      return {{"type", "object"}, {"additionalProperties", OfValue(*field.message_type()->map_value())}};
    }
    if (field.is_repeated()) return {{"type", "array"}, {"items", OfValue(field)}};
    return OfValue(field);
  }

  json OfValue(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_INT32:
        return {{"type", "integer"}, {"format", "int32"}};
      case FieldDescriptor::CPPTYPE_UINT32:
        return {{"type", "integer"}, {"format", "int64"}, {"minimum", 0}};
      case FieldDescriptor::CPPTYPE_INT64:
        return {{"type", "string"}, {"format", "int64"}};
      case FieldDescriptor::CPPTYPE_UINT64:
        return {{"type", "string"}, {"format", "uint64"}};
      case FieldDescriptor::CPPTYPE_FLOAT:
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return {{"oneOf", {{{"type", "number"}}, {{"type", "string"}, {"enum", {"NaN", "Infinity", "-Infinity"}}}}}};
      case FieldDescriptor::CPPTYPE_ENUM:
        return OfEnum(*field.enum_type());
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return ReferenceTo(*field.message_type());
      case FieldDescriptor::CPPTYPE_STRING:
        break;
    }
    if (field.type() == FieldDescriptor::TYPE_BYTES) return {{"type", "string"}, {"format", "byte"}};
    return {{"type", "string"}};
  }

  json OfEnum(const EnumDescriptor& type) {
    json names = json::array();
    for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
    schemas_[type.full_name()] = {{"type", "string"}, {"enum", std::move(names)}};
    return Reference(type.full_name());
  }

  std::set<std::string> seen_;
  std::deque<const Descriptor*> waiting_;
  json schemas_ = json::object();
};

json ContentOf(const char* type, json schema) { return {{"content", {{type, {{"schema", std::move(schema)}}}}}}; }

// google.rpc.Status; its details are messages of any type.
json StatusSchema() {
  return {{"type", "object"},
          {"properties",
           {{"code", {{"type", "integer"}, {"format", "int32"}}},
            {"message", {{"type", "string"}}},
            {"details",
             {{"type", "array"},
              {"items",
               {{"type", "object"},
                {"properties", {{"@type", {{"type", "string"}}}}},
                {"additionalProperties", true}}}}}}}};
}

json OperationOf(const MethodDescriptor& method, Schemas& schemas) {
  const bool reads = NeedOfJobMethod(method.name()) == Need::kRead;
  json response = schemas.ReferenceTo(*method.output_type());
  const char* type = "application/json";
  if (method.server_streaming()) {
    type = "application/x-ndjson";
    response = {{"type", "object"},
                {"properties", {{"result", std::move(response)}, {"error", Reference("google.rpc.Status")}}}};
  }
  json success = ContentOf(type, std::move(response));
  success["description"] = method.server_streaming() ? "one object per line" : "the answer";
  json failure = ContentOf("application/json", Reference("google.rpc.Status"));
  failure["description"] = "an error";
  json body = ContentOf("application/json", schemas.ReferenceTo(*method.input_type()));
  return {{"operationId", method.name()},
          {"tags", json::array({reads ? "viewer" : "operator"})},
          {"requestBody", std::move(body)},
          {"responses", {{"200", std::move(success)}, {"default", std::move(failure)}}}};
}

}  // namespace

std::string OpenApiJson() {
  const auto& service = JobServiceDescriptor();
  Schemas schemas;
  json paths = json::object();
  for (int i = 0; i < service.method_count(); ++i) {
    const MethodDescriptor& method = *service.method(i);
    paths[absl::StrCat(kMethodPrefix, method.name())] = {{"post", OperationOf(method, schemas)}};
  }
  json components = schemas.Take();
  components["google.rpc.Status"] = StatusSchema();
  const json document = {{"openapi", "3.0.3"},
                         {"info", {{"title", "Trainyard"}, {"version", kVersion}}},
                         {"paths", std::move(paths)},
                         {"components",
                          {{"schemas", std::move(components)},
                           {"securitySchemes", {{"token", {{"type", "http"}, {"scheme", "bearer"}}}}}}},
                         {"security", json::array({{{"token", json::array()}}})}};
  return document.dump();
}

}  // namespace trainyard
