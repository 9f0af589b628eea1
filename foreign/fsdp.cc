// Translates the group fsdp_config of Accelerate and of TrainingArguments.
#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

struct Strategy {
  const char* names;  // the names of the strategy, and its number in FSDP 1
  const char* data;
  const char* reshard;
};
constexpr Strategy kFsdpStrategies[] = {{"true|full_shard|1", "fsdp", "true"},
                                        {"false|shard_grad_op|2", "fsdp", "false"},
                                        {"no_shard|3", "ddp", ""},
                                        {"hybrid_shard|4", "hsdp", "true"},
                                        {"hybrid_shard_zero2|_hybrid_shard_zero2|5", "hsdp", "false"}};

struct BlockClass {
  const char* name;
  const char* family;
};
constexpr BlockClass kBlockClasses[] = {{"GPT2Block", "gpt2"},
                                        {"LlamaDecoderLayer", "llama"},
                                        {"MistralDecoderLayer", "mistral"},
                                        {"Qwen2DecoderLayer", "qwen2"}};

class FsdpTranslator {
 public:
  FsdpTranslator(Translation* t, int version, uint64_t ranks_per_host)
      : t_(*t), version_(version), ranks_per_host_(ranks_per_host) {}

  void Translate() {
    SetStrategy();
    SetFamily();
    for (const char* name : {"fsdp_config.offload_params", "fsdp_config.cpu_offload"}) {
      for (const char* job_key : {"parallel.offload.parameters", "parallel.offload.optimizer"}) {
        SetSame(&t_, name, job_key);
      }
    }
    if (const Value* value = t_.Find("fsdp_config.backward_prefetch"); value != nullptr) {
      if (absl::EqualsIgnoreCase(value->text, "NO_PREFETCH")) {
        t_.Set(*value, "parallel.prefetch_elements", "0");
      } else {
        t_.Explain(*value, "one block is gathered ahead by default");
      }
    }
    if (const Value* value = t_.Find("fsdp_config.state_dict_type"); value != nullptr) SetFormat(*value);
    if (const Value* value = t_.Find("fsdp_config.activation_checkpointing"); value != nullptr) {
      t_.Set(*value, "parallel.recompute.mode", *value->flag ? "blocks" : "none");
    }
  }

 private:
  void SetStrategy() {
    const Value* version = t_.Find("fsdp_config.version");
    const Value* reshard = t_.FindFixed("fsdp_config.reshard_after_forward");
    const Value* sharding = t_.FindFixed("fsdp_config.sharding_strategy");
    const Value* group = t_.Find("fsdp_config");
    if (version != nullptr) {
      if (*version->number != 1 && *version->number != 2) {
        return t_.Error(*version, absl::StrCat("expected 1 or 2, found ", version->text));
      }
      version_ = static_cast<int>(*version->number);
      if (version_ == 1) t_.Warn(*version, "FSDP 1 is translated to what `accelerate to-fsdp2` makes of it");
    }
    // Not ||, because both keys must be translated.
    const bool has_strategy = SetByName(sharding) | SetByName(reshard);
    // parallelism_config may have set parallel.data already.
    const std::string data = t_.FileValueOf("parallel.data");
    const Value* from = version != nullptr ? version : group != nullptr ? group : t_.First();
    if (from != nullptr && !has_strategy) t_.Set(*from, "parallel.data", data.empty() ? "fsdp" : data);
    if (version != nullptr && has_strategy) t_.Explain(*version, "the strategy decides parallel.data");
  }

  // Returns whether a value is given, even if it names no strategy.
  bool SetByName(const Value* value) {
    if (value == nullptr) return false;
    const auto* found = std::find_if(std::begin(kFsdpStrategies), std::end(kFsdpStrategies), [&](const Strategy& row) {
      return IsOneOf(value->text, row.names) ||
             (value->flag.has_value() && IsOneOf(*value->flag ? "true" : "false", row.names));
    });
    if (found == std::end(kFsdpStrategies)) {
      t_.Error(*value,
               absl::StrCat("expected true, false, FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2 or "
                            "NO_SHARD, found ",
                            value->text));
      return true;
    }
    // true and false say how to gather; the strategy may come from parallelism_config.
    const std::string before = t_.FileValueOf("parallel.data");
    t_.Set(*value, "parallel.data", value->flag.has_value() && !before.empty() ? before : found->data);
    if (*found->reshard != '\0') t_.Set(*value, "parallel.reshard_after_forward", found->reshard);
    if (found->data == std::string("hsdp")) SetHybrid(*value);
    return true;
  }

  void SetHybrid(const Value& value) {
    if (ranks_per_host_ > 0) {
      t_.Set(value, "parallel.shard", absl::StrCat(ranks_per_host_));
      return t_.Announce(value, absl::StrCat("each host has a copy of the state, on its ", ranks_per_host_, " ranks"));
    }
    if (!t_.HasFlag("parallel.shard") && !t_.HasFlag("parallel.replicate")) {
      t_.Error(value, "the ranks of a host are not known; add --set parallel.shard=N: N ranks share a copy");
    }
  }

  void SetFormat(const Value& value) {
    if (absl::EqualsIgnoreCase(value.text, "LOCAL_STATE_DICT")) {
      return t_.Error(value,
                      "LOCAL_STATE_DICT is not available; use SHARDED_STATE_DICT, which any number of ranks loads");
    }
    t_.Set(value, "checkpoint.format", absl::StartsWithIgnoreCase(value.text, "FULL") ? "full" : "sharded");
  }

  void SetFamily() {
    const Value* value = t_.FindFixed("fsdp_config.transformer_layer_cls_to_wrap");
    if (value == nullptr) return;
    std::string names;
    for (const BlockClass& row : kBlockClasses) absl::StrAppend(&names, names.empty() ? "" : ", ", row.name);
    for (const std::string& item : value->items) {
      const auto* found = std::find_if(std::begin(kBlockClasses), std::end(kBlockClasses),
                                       [&](const BlockClass& row) { return item == row.name; });
      if (found == std::end(kBlockClasses)) {
        t_.Error(*value, absl::StrCat("no model of Trainyard has blocks of class ", item, "; the classes are ", names));
        return;
      }
      if (!IsModelNamed()) {
        t_.Set(*value, "train.model.family", found->family);
      } else if (const BlockClass& own = ClassOfModel(); own.name != item) {
        t_.Error(*value, absl::StrCat(item, " is a block of the family ", found->family,
                                      ", but the model is of the family ", own.family, ", whose block is ", own.name));
      } else {
        t_.Explain(*value, "the class of the model's block");
      }
    }
  }

  bool IsModelNamed() const {
    return t_.HasFlag("train.model.preset") || t_.HasFlag("train.model.path") || t_.HasFlag("train.model.family");
  }

  const BlockClass& ClassOfModel() const {
    for (const BlockClass& row : kBlockClasses) {
      if (t_.FamilyOfModel() == row.family) return row;
    }
    return kBlockClasses[0];
  }

  Translation& t_;
  int version_;
  const uint64_t ranks_per_host_;
};

}  // namespace

void TranslateFsdp(Translation* t, int version, uint64_t ranks_per_host) {
  FsdpTranslator(t, version, ranks_per_host).Translate();
}

}  // namespace trainyard::foreign
