#include "worker/link/same_computation.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "spec/model_sizes.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kKeysNamed = 5;
constexpr size_t kValueBytes = 200;
constexpr char kUnset[] = "auto";

enum class Rule {
  kMayChange,   // does not change what is computed
  kIsData,      // changes which samples are used
  kIsFunction,  // changes the function that the weights belong to
};

Rule RuleOf(absl::string_view key) {
  const bool decides_tokens = key == "train.data.loss" || key == "train.data.separate_documents" ||
                              key == "train.data.weights" || absl::StartsWith(key, "train.data.fields.");
  if (key == "train.data.validation" || key == "train.seed" || decides_tokens) return Rule::kIsData;
  if (key == "train.data.tokenizer" || key == "train.optimizer.name" || key == "train.freeze") return Rule::kIsFunction;
  if (key == "train.batch.length") return Rule::kIsData;
  // These keys may change: the sizes that they stand for are keys of their own, which must not change.
  const bool is_model_key = absl::StartsWith(key, "train.model.");
  for (const char* name : {"init_from", "preset", "path", "config"}) {
    if (key == absl::StrCat("train.model.", name)) return Rule::kMayChange;
  }
  if (key == "train.lora.path" || key == "train.lora.config") return Rule::kMayChange;
  if (absl::StartsWith(key, "train.lora.")) return Rule::kIsFunction;
  return is_model_key ? Rule::kIsFunction : Rule::kMayChange;
}

// Older versions did not know all keys: sets the missing keys to the values that those versions implied.
void SetMissingKeys(v1::JobSpec& spec) {
  ApplyDefaults(&spec);
  v1::Batch& batch = *spec.mutable_train()->mutable_batch();
  if (!batch.has_length()) batch.set_length(spec.train().model().context());
}

std::string ValueOf(const Message& message, const FieldDescriptor& field) {
  const bool missing = !field.is_repeated() && !message.GetReflection()->HasField(message, &field);
  std::string text = missing ? kUnset : FieldYaml(message, field);
  if (text.empty() || text == "[]") return "none";
  if (text.size() > kValueBytes) text = absl::StrCat(text.substr(0, kValueBytes), "...");
  return text;
}

bool IsSet(const Message& message, const FieldDescriptor& field) {
  const auto& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(message, &field) > 0 : reflection.HasField(message, &field);
}

// Adds the differences between two messages whose key is `parent`; with `only_set`, only keys that `before` has.
void Compare(const std::string& parent, const Message& before, const Message& now, bool only_set,
             std::vector<KeyChange>& changes) {
  const auto& descriptor = *before.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const std::string key = yaml::JoinKeys(parent, yaml::KeyOf(field));
    if (only_set && !IsSet(before, field)) continue;
    if (field.message_type() != nullptr) {
      Compare(key, before.GetReflection()->GetMessage(before, &field), now.GetReflection()->GetMessage(now, &field),
              only_set, changes);
      continue;
    }
    const std::string was = ValueOf(before, field), is = ValueOf(now, field);
    if (FieldYaml(before, field) == FieldYaml(now, field) && was == is) continue;
    changes.push_back({.key = key, .before = was, .now = is});
  }
}

absl::Status Refuse(const std::vector<KeyChange>& refused, bool only_data) {
  std::vector<std::string> keys;
  for (const KeyChange& change : refused) {
    keys.push_back(absl::StrCat(change.key, " was ", change.before, ", is ", change.now));
  }
  const absl::string_view remedy =
      only_data ? "or resume with different data by --allow-data-change (checkpoint.allow_data_change: true)"
                : "or begin a new job from these weights: another checkpoint.dir, and this checkpoint as "
                  "train.model.init_from";
  return absl::InvalidArgumentError(absl::StrCat("the job does not compute what the job of the checkpoint computed: ",
                                                 JoinFirst(keys, kKeysNamed, "; ", "; ", "key"),
                                                 ". Give these keys their earlier values, ", remedy));
}

}  // namespace

absl::StatusOr<std::vector<KeyChange>> CompareComputation(const SpecPair& specs) {
  std::vector<KeyChange> changes, refused;
  v1::JobSpec before, now;
  const bool readable = before.ParseFromArray(specs.before.data(), static_cast<int>(specs.before.size())) &&
                        now.ParseFromArray(specs.now.data(), static_cast<int>(specs.now.size()));
  if (!readable || !before.has_train()) return changes;
  const bool resolved = before.train().has_steps();
  if (resolved) {
    SetMissingKeys(before);
    SetMissingKeys(now);
  }
  Compare("train", before.train(), now.train(), !resolved, changes);
  Compare("parallel", before.parallel(), now.parallel(), !resolved, changes);
  if (before.resources().has_ranks() && before.resources().ranks() != now.resources().ranks()) {
    changes.push_back({.key = "resources.ranks",
                       .before = absl::StrCat(before.resources().ranks()),
                       .now = absl::StrCat(now.resources().ranks())});
  }
  bool only_data = true;
  for (const KeyChange& change : changes) {
    // The dropout with which an imported model was trained is unknown, so it may differ.
    const bool is_imported_dropout = !resolved && change.key == "train.model.dropout";
    // Parameters of GPT-2 depend on the context. In the Llama graph, the context only limits the length of sequences.
    const bool is_limit = change.key == "train.model.context" && IsLlamaGraph(SizesOfModel(now.train().model()).family);
    // The file of a tokenizer may move. Its hash is part of the hash of the data, which CheckSameData compares.
    const bool is_other_kind =
        change.key == "train.data.tokenizer_path" && (change.before == kUnset || change.now == kUnset);
    const Rule rule = is_other_kind                     ? Rule::kIsFunction
                      : is_imported_dropout || is_limit ? Rule::kMayChange
                                                        : RuleOf(change.key);
    if (rule == Rule::kMayChange || (rule == Rule::kIsData && specs.allow_data_change)) continue;
    only_data = only_data && rule == Rule::kIsData;
    refused.push_back(change);
  }
  if (!refused.empty()) return Refuse(refused, only_data);
  return changes;
}

}  // namespace trainyard
