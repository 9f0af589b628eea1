// Sizes of batches: train_batch = micro x accumulation x data ranks.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "foreign/translators.h"
#include "spec/parallel_rules.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::foreign {
namespace {

constexpr char kGlobalKey[] = "train.batch.global";
constexpr char kMicroKey[] = "train.batch.micro";
constexpr double kBatchMax = 1 << 24;  // the limit of train.batch.global

uint64_t WholeOf(const std::string& yaml, uint64_t otherwise) {
  double number = 0;
  return absl::SimpleAtod(yaml, &number) && number >= 1 && number <= kBatchMax ? static_cast<uint64_t>(number)
                                                                               : otherwise;
}

// A text as a value in YAML: in quotes if it would not be this text without them.
std::string ValueOfText(const std::string& text) {
  v1::JobSpec job;  // any message with a text does
  job.set_name(text);
  return FieldYaml(job, *v1::JobSpec::descriptor()->FindFieldByName("name"));
}

class BatchTranslator {
 public:
  BatchTranslator(Translation* t, const BatchKeys& keys) : t_(*t), data_ranks_(DataRanksOf(*t)) {
    global_ = Read(keys.global, kGlobalKey, &global_value_);
    micro_ = Read(keys.micro, kMicroKey, &micro_value_);
    accumulation_ = Read(keys.accumulation, nullptr, &accumulation_value_);
  }

  void Translate() {
    if (invalid_ || (global_ == 0 && micro_ == 0)) return ExplainUnknown();
    // A flag for one of the sizes replaces the accumulation of the file, because a job has no key for it.
    const bool by_flag = t_.HasFlag(kGlobalKey) || t_.HasFlag(kMicroKey);
    if (global_ > 0 && micro_ > 0 && accumulation_ > 0 && by_flag && !Fits()) {
      const uint64_t before = accumulation_;
      accumulation_ = 0;
      if (!Complete()) return;
      t_.Announce(*accumulation_value_,
                  absl::StrCat("is ", accumulation_, " instead of ", before,
                               ", because of --set: ", ProductText(micro_, accumulation_, data_ranks_)));
    }
    if (Complete()) SetSizes();
  }

 private:
  // The size that --set or a key of the file gives; 0 if neither gives one.
  uint64_t Read(const char* key, const char* job_key, const Value** value) {
    *value = *key == '\0' ? nullptr : t_.Find(key);
    if (job_key != nullptr && t_.HasFlag(job_key)) return WholeOf(t_.ValueOf(job_key), 0);
    if (*value == nullptr || (*value)->is_auto) return 0;
    const double number = (*value)->number.value_or(0);
    if (number >= 1 && number <= kBatchMax) return static_cast<uint64_t>(number);
    t_.Reject(kGlobalKey);
    t_.Error(**value, absl::StrCat("must be from 1 to ", static_cast<uint64_t>(kBatchMax), ", found ", (*value)->text));
    invalid_ = true;
    return 0;
  }

  bool Fits() const { return global_ == micro_ * accumulation_ * data_ranks_; }

  // Computes the sizes that are not given, as DeepSpeed does. If they are not whole, reports that and returns false.
  bool Complete() {
    if (global_ > 0 && micro_ > 0 && accumulation_ == 0) {
      accumulation_ = global_ / (micro_ * data_ranks_);
    } else if (global_ > 0 && micro_ == 0) {
      if (accumulation_ == 0) accumulation_ = 1;
      micro_ = global_ / (accumulation_ * data_ranks_);
    } else if (global_ == 0) {
      if (accumulation_ == 0) accumulation_ = 1;
      global_ = micro_ * accumulation_ * data_ranks_;
    }
    if (accumulation_ > 0 && micro_ > 0 && Fits()) return true;
    ReportProduct();
    return false;
  }

  void ReportProduct() {
    const Value* at = global_value_ != nullptr ? global_value_ : micro_value_;
    if (at == nullptr) at = accumulation_value_;
    if (at == nullptr) return;
    t_.Reject(kGlobalKey);
    const uint64_t micro = std::max<uint64_t>(micro_, 1), accumulation = std::max<uint64_t>(accumulation_, 1);
    t_.Error(*at,
             absl::StrCat("the batch of a step is ", global_, ", but ", ProductText(micro, accumulation, data_ranks_),
                          "; correct one of the sizes, or resources.ranks"));
  }

  void SetSizes() {
    SetSize(global_value_, kGlobalKey, global_);
    SetSize(micro_value_, kMicroKey, micro_);
    if (accumulation_value_ == nullptr) return;
    // A job has no key for the accumulation: it follows from the other two.
    if (global_value_ == nullptr && !t_.HasFlag(kGlobalKey)) {
      if (micro_value_ != nullptr) t_.Set(*micro_value_, kGlobalKey, absl::StrCat(global_));
      t_.Set(*accumulation_value_, kGlobalKey, absl::StrCat(global_));
    }
    if (micro_value_ == nullptr && !t_.HasFlag(kMicroKey)) {
      t_.Set(*accumulation_value_, kMicroKey, absl::StrCat(micro_));
    }
    if (accumulation_value_->is_auto) {
      t_.Announce(*accumulation_value_,
                  absl::StrCat("auto is ", accumulation_, ", from ", ProductText(micro_, accumulation_, data_ranks_)));
    }
  }

  void SetSize(const Value* value, const char* key, uint64_t size) {
    if (value == nullptr) return;
    if (!value->is_auto) {
      t_.Set(*value, key, yaml::NumberText(*value->number));
      if (accumulation_value_ != nullptr) return;
      // Sets the other size, too, if the file does not give it. The file has no key for the accumulation, which is then
      // 1, as in DeepSpeed.
      if (global_value_ == nullptr && !t_.HasFlag(kGlobalKey)) t_.Set(*value, kGlobalKey, absl::StrCat(global_));
      if (micro_value_ == nullptr && !t_.HasFlag(kMicroKey)) t_.Set(*value, kMicroKey, absl::StrCat(micro_));
      return;
    }
    t_.Set(*value, key, absl::StrCat(size));
    t_.Announce(*value, absl::StrCat("auto is ", size, ", from ", ProductText(micro_, accumulation_, data_ranks_)));
  }

  void ExplainUnknown() {
    for (const Value* value : {global_value_, micro_value_, accumulation_value_}) {
      if (value == nullptr || invalid_) continue;
      t_.Announce(*value, absl::StrCat("the size of the batch is not known; add --set ", kGlobalKey, "=N or --set ",
                                       kMicroKey, "=N"));
    }
  }

  Translation& t_;
  const uint64_t data_ranks_;
  const Value* global_value_ = nullptr;
  const Value* micro_value_ = nullptr;
  const Value* accumulation_value_ = nullptr;
  uint64_t global_ = 0;
  uint64_t micro_ = 0;
  uint64_t accumulation_ = 0;
  bool invalid_ = false;
};

}  // namespace

uint64_t RanksOf(const Translation& t) { return WholeOf(t.ValueOf("resources.ranks"), 1); }

uint64_t DataRanksOf(const Translation& t) {
  const uint64_t model_ranks =
      WholeOf(t.ValueOf("parallel.tensor"), 1) * WholeOf(t.ValueOf("parallel.pipeline.stages"), 1);
  return std::max<uint64_t>(RanksOf(t) / model_ranks, 1);
}

bool ReducesSeveralTimes(const Translation& t) {
  const uint64_t data_ranks = DataRanksOf(t), global = WholeOf(t.ValueOf(kGlobalKey), 0);
  if (data_ranks == 1 || WholeOf(t.ValueOf("parallel.pipeline.stages"), 1) > 1) return false;
  if (global == 0) {
    const double in_group = t.Number("deepspeed_config.gradient_accumulation_steps").value_or(1);
    return t.Number("gradient_accumulation_steps").value_or(in_group) > 1;
  }
  const uint64_t given = WholeOf(t.ValueOf(kMicroKey), 0);
  const uint64_t micro = given > 0 ? given : AutoMicro(global, data_ranks);
  return global % micro == 0 && DealShapeOf(global, micro, data_ranks).rounds > 1;
}

void SetSame(Translation* t, absl::string_view canonical_key, absl::string_view key) {
  const Value* value = t->FindFixed(canonical_key);
  if (value == nullptr) return;
  if (value->rule->form == Form::kFlag) return t->Set(*value, key, *value->flag ? "true" : "false");
  t->Set(*value, key, value->number.has_value() ? yaml::NumberText(*value->number) : ValueOfText(value->whole));
}

void TranslateBatch(Translation* t, const BatchKeys& keys) { BatchTranslator(t, keys).Translate(); }

}  // namespace trainyard::foreign
