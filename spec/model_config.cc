#include "spec/model_config.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "models/hugging_face_config.h"
#include "spec/model_sizes.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

class ConfigMerger {
 public:
  ConfigMerger(std::string origin, bool may_shorten, const Positions& positions, Problems* problems)
      : origin_(std::move(origin)), may_shorten_(may_shorten), positions_(positions), problems_(*problems) {}

  // Sets the keys of `model` that are not given to those of `sizes`, and compares the others.
  void Merge(const Message& sizes, const std::string& parent, Message* model) {
    const auto& reflection = *sizes.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(sizes, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string key = yaml::JoinKeys(parent, yaml::KeyOf(*field));
      if (field->message_type() != nullptr) {
        Merge(reflection.GetMessage(sizes, field), key, reflection.MutableMessage(model, field));
      } else if (reflection.HasField(*model, field)) {
        Compare(sizes, *field, key, model);
      } else if (positions_.count(key) == 0) {
        CopyField(sizes, *field, model);
      }
    }
  }

 private:
  void Compare(const Message& sizes, const FieldDescriptor& field, const std::string& key, Message* model) {
    const std::string expected = FieldYaml(sizes, field), found = FieldYaml(*model, field);
    if (expected == found || key == "train.model.dropout") return;
    const auto& reflection = *sizes.GetReflection();
    const bool is_context = key == "train.model.context";
    if (is_context && may_shorten_ && reflection.GetUInt32(*model, &field) < reflection.GetUInt32(sizes, &field))
      return;
    problems_.AddError(positions_, key,
                       absl::StrCat("is ", found, ", but ", origin_, " says ", expected,
                                    is_context && may_shorten_ ? " at most" : "", "; remove the key"));
    CopyField(sizes, field, model);  // so that no other problem follows from this one
  }

  static void CopyField(const Message& from, const FieldDescriptor& field, Message* to) {
    const auto& r = *from.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.SetUInt32(to, &field, r.GetUInt32(from, &field));
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return r.SetDouble(to, &field, r.GetDouble(from, &field));
      case FieldDescriptor::CPPTYPE_BOOL:
        return r.SetBool(to, &field, r.GetBool(from, &field));
      case FieldDescriptor::CPPTYPE_ENUM:
        return r.SetEnumValue(to, &field, r.GetEnumValue(from, &field));
      default:
        return;  // the sizes have no other types
    }
  }

  const std::string origin_;
  const bool may_shorten_;
  const Positions& positions_;
  Problems& problems_;
};

// Adds positions of the sizes, so that later checks do not also report them as missing.
void CountSizesAsGiven(Positions* positions) {
  for (const char* key : {"layers", "heads", "width", "context"}) {
    positions->insert({absl::StrCat("train.model.", key), Position{}});
  }
}

}  // namespace

void ApplyModelConfig(Positions* positions, v1::JobSpec* spec, Problems* problems) {
  if (!spec->train().model().has_path() && !spec->train().model().has_config()) return;
  v1::Model& model = *spec->mutable_train()->mutable_model();
  const FieldDescriptor& config = *yaml::FieldOfKey(*v1::Model::descriptor(), "config");
  if (!model.has_config()) {
    if (positions->count("train.model.config") == 0) {
      problems->AddError(*positions, "train.model.path",
                         "needs the text of its config.json in train.model.config: submit the job with trainctl, which "
                         "reads the file, or give that key");
    }
    return CountSizesAsGiven(positions);
  }
  if (!yaml::TextProblem(config, model.config()).empty())
    return CountSizesAsGiven(positions);  // DropInvalid reports it
  if (model.has_preset()) {
    problems->AddError(*positions, "train.model.preset",
                       "gives sizes, but config.json of train.model.path decides them; remove one of the two");
  }
  const std::string origin = model.has_path() ? JoinPath(model.path(), "config.json") : "train.model.config";
  absl::StatusOr<ModelSizes> sizes = ParseHuggingFaceConfig(model.config(), origin);
  if (!sizes.ok()) {
    problems->AddError(*positions, model.has_path() ? "train.model.path" : "train.model.config",
                       std::string(sizes.status().message()));
    return CountSizesAsGiven(positions);
  }
  const auto& rule = yaml::RuleOf(*yaml::FieldOfKey(*v1::Model::descriptor(), "context"));
  const bool is_llama = IsLlamaGraph(sizes->family);
  if (is_llama) sizes->context = std::min(sizes->context, static_cast<int64_t>(rule.max()));
  v1::Model described;
  SetModelSizes(*sizes, described);
  ConfigMerger(origin, /*may_shorten=*/is_llama, *positions, problems).Merge(described, "train.model", &model);
}

}  // namespace trainyard
