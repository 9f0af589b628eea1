#include "spec/model_rules.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/yaml_schema.h"
#include "models/hugging_face_config.h"
#include "spec/choices.h"
#include "spec/model_sizes.h"

namespace trainyard {
namespace {

class ModelRules {
 public:
  ModelRules(const v1::Train& train, const Positions& positions, Problems* problems)
      : train_(train), model_(train.model()), positions_(positions), problems_(*problems) {}

  void Check() {
    const int before = problems_.error_count();
    if (model_.heads() > 0 && model_.width() > 0) Heads();
    if (model_.layers() == 0 || model_.heads() == 0 || model_.width() == 0 || model_.context() == 0) return;
    const ModelSizes sizes = SizesOfModel(model_);
    Length(sizes);
    if (IsLlamaGraph(sizes.family)) {
      KvHeads();
      RopeKeys();
    } else {
      KeysOfOtherFamilies(sizes.family);
    }
    if (sizes.family != ModelFamily::kGpt2 && model_.dropout() > 0) {
      Error("dropout",
            absl::StrCat("must be 0, because ", FamilyName(sizes.family), " has no dropout; found ", model_.dropout()));
    }
    if (sizes.family == ModelFamily::kMlp) Classifier();
    if (problems_.error_count() > before) return;
    absl::Status status = CheckSizes(sizes);
    if (status.ok()) status = CheckExportable(sizes);
    if (!status.ok()) {
      problems_.AddError(positions_, "train.model", std::string(status.message()));
    }
  }

 private:
  void Heads() {
    const bool is_llama = IsLlamaGraph(SizesOfModel(model_).family);
    if (model_.width() % model_.heads() == 0 || (is_llama && model_.has_head_width())) return;
    const uint64_t below = model_.width() / model_.heads() * uint64_t{model_.heads()};
    Error("heads", absl::StrCat("width ", model_.width(), " is not a multiple of heads ", model_.heads(),
                                "; choose heads ", Choices(DivisorsNear(model_.width(), model_.heads())), " or width ",
                                below == 0 ? "" : absl::StrCat(below, " or "), below + model_.heads(),
                                is_llama ? ", or give head_width" : ""));
  }

  void KvHeads() {
    if (model_.kv_heads() == 0 || model_.heads() % model_.kv_heads() == 0) return;
    Error("kv_heads", absl::StrCat("must divide heads ", model_.heads(), "; found ", model_.kv_heads(), "; choose ",
                                   Choices(DivisorsNear(model_.heads(), model_.kv_heads()))));
  }

  void RopeKeys() {
    const v1::Rope& rope = model_.rope();
    const bool is_llama3 = rope.scaling() == v1::ROPE_SCALING_LLAMA3;
    if (rope.scaling() == v1::ROPE_SCALING_LINEAR && !rope.has_factor() &&
        positions_.count("train.model.rope.factor") == 0) {
      Error("rope.factor", "is required by rope.scaling linear; expected a number of at least 1");
    }
    for (const char* key : {"factor", "low_frequency_factor", "high_frequency_factor", "original_context"}) {
      const bool has_effect = is_llama3 || (rope.scaling() == v1::ROPE_SCALING_LINEAR && key[0] == 'f');
      const auto* field = yaml::FieldOfKey(*v1::Rope::descriptor(), key);
      if (has_effect || !rope.GetReflection()->HasField(rope, field)) continue;
      Warning(absl::StrCat("rope.", key),
              absl::StrCat("has no effect: rope.scaling is not llama3", key[0] == 'f' ? " or linear" : ""));
    }
  }

  // Checks the keys that have another meaning for a classifier, or none.
  void Classifier() {
    if (!model_.has_vocabulary() && positions_.count("train.model.vocabulary") == 0) {
      Error("vocabulary", "is required with family mlp; expected the number of classes");
    }
    if (train_.batch().has_length() && train_.batch().length() != model_.context()) {
      problems_.AddError(positions_, "train.batch.length",
                         absl::StrCat("is ", train_.batch().length(), ", but a sample of an mlp has all ",
                                      model_.context(), " features (train.model.context); remove the key"));
    }
    if (train_.lora().rank() > 0 || train_.lora().has_path()) {
      problems_.AddError(positions_, "train.lora", "has no effect on an mlp, which has no projections; remove it");
    }
  }

  // Warns of keys of parts that only models like Llama have: GPT-2 and a classifier have none of them.
  void KeysOfOtherFamilies(ModelFamily family) {
    for (const char* key :
         {"kv_heads", "head_width", "inner", "norm_eps", "tied", "attention_bias", "mlp_bias", "rope", "window"}) {
      const auto* field = yaml::FieldOfKey(*v1::Model::descriptor(), key);
      if (!model_.GetReflection()->HasField(model_, field)) continue;
      if (field->message_type() != nullptr && model_.rope().ByteSizeLong() == 0) continue;
      Warning(key, absl::StrCat("has no effect: the family ", FamilyName(family), " does not have this setting"));
    }
  }

  void Length(const ModelSizes& sizes) {
    const int64_t length = DecidedLength(train_);
    if (length > sizes.context) {
      problems_.AddError(
          positions_, "train.batch.length",
          absl::StrCat("is ", length, ", but the model has only ", sizes.context, " positions (train.model.context)"));
    } else if (length > LongestSequence(sizes)) {
      problems_.AddError(
          positions_, "train.batch.length",
          absl::StrCat("is ", length, ", but the model attends to ", sizes.window,
                       " tokens at most (train.model.window), and longer sequences are not implemented; choose a "
                       "length of at most ",
                       sizes.window));
    }
  }

  void Error(absl::string_view key, absl::string_view text) {
    problems_.AddError(positions_, absl::StrCat("train.model.", key), text);
  }
  void Warning(absl::string_view key, absl::string_view text) {
    problems_.AddWarning(positions_, absl::StrCat("train.model.", key), text);
  }

  const v1::Train& train_;
  const v1::Model& model_;
  const Positions& positions_;
  Problems& problems_;
};

}  // namespace

void CheckModelKeys(const v1::Train& train, const Positions& positions, Problems* problems) {
  ModelRules(train, positions, problems).Check();
}

}  // namespace trainyard
