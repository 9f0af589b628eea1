#include "spec/precision_rules.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"

namespace trainyard {
namespace {

bool Is16Bit(v1::Precision type) { return type == v1::PRECISION_BF16 || type == v1::PRECISION_FP16; }

std::string NameOf(v1::Precision type) { return EnumName(*v1::Precision_descriptor()->FindValueByNumber(type)); }

// Returns why the types cannot be combined; empty if they can. worker/numerics/precision.cc has the same rules.
std::string Contradiction(const v1::PrecisionPolicy& p) {
  int num_fp64 = 0;
  for (v1::Precision type : {p.param(), p.reduce(), p.output(), p.master(), p.state()}) {
    if (!v1::Precision_IsValid(type) || type == v1::PRECISION_UNSPECIFIED) return "";  // has been reported already
    num_fp64 += type == v1::PRECISION_FP64 ? 1 : 0;
  }
  if (num_fp64 != 0 && num_fp64 != 5)
    return "fp64 must be the type of all of param, reduce, output, master and state, or of none";
  if (p.master() == v1::PRECISION_FP16) return "master fp16 loses most updates; choose fp32 or bf16";
  if (p.state() == v1::PRECISION_FP16) return "state fp16 cannot hold squares of gradients; choose fp32 or bf16";
  if (p.master() == v1::PRECISION_BF16 && p.param() != v1::PRECISION_BF16) {
    return absl::StrCat("master bf16 has a lower precision than param ", NameOf(p.param()),
                        "; choose param bf16, or master fp32");
  }
  if (Is16Bit(p.reduce()) && p.reduce() != p.param() && p.param() != v1::PRECISION_FP32) {
    return absl::StrCat("reduce ", NameOf(p.reduce()), " cannot be combined with param ", NameOf(p.param()),
                        "; choose ", NameOf(p.param()), " or fp32");
  }
  return "";
}

// Warns about settings that a static scale ignores, and checks that `min` is not above `initial`. An overflow never
// sets the scale below `min`, so with a greater `min` it would raise the scale.
void CheckLossScale(const v1::LossScale& scale, const Positions& positions, Problems* problems) {
  constexpr char kInitialKey[] = "train.loss_scale.initial", kMinKey[] = "train.loss_scale.min";
  if (scale.static_()) {
    for (const char* key : {"window", "backoff", "hysteresis", "min"}) {
      const auto* field = yaml::FieldOfKey(*v1::LossScale::descriptor(), key);
      if (!scale.GetReflection()->HasField(scale, field) || yaml::HasDefaultValue(scale, *field)) continue;
      problems->AddWarning(positions, absl::StrCat("train.loss_scale.", key),
                           "has no effect: train.loss_scale.static is true, so the scale never changes");
    }
    return;
  }
  // An invalid value has been removed from `scale` and reported already. The job file still has a position for its key.
  const bool has_invalid =
      (!scale.has_initial() && positions.count(kInitialKey) > 0) || (!scale.has_min() && positions.count(kMinKey) > 0);
  if (has_invalid) return;
  v1::LossScale complete = scale;
  ApplyDefaults(&complete);
  if (complete.min() <= complete.initial()) return;
  problems->AddError(positions, kMinKey,
                     absl::StrCat("is ", yaml::NumberText(complete.min()), ", above ", kInitialKey, ", ",
                                  yaml::NumberText(complete.initial()),
                                  ", so that the first overflow would raise the scale; give a smaller min or a larger "
                                  "initial"));
}

}  // namespace

uint64_t BytesOf(v1::Precision type) {
  if (type == v1::PRECISION_FP64) return 8;
  return Is16Bit(type) ? 2 : 4;
}

v1::PrecisionPolicy ResolvedPrecision(const v1::PrecisionPolicy& policy) {
  v1::PrecisionPolicy out = policy;
  out.clear_type();
  if (!out.has_param()) out.set_param(policy.has_type() ? policy.type() : v1::PRECISION_FP32);
  const bool is_fp64 = out.param() == v1::PRECISION_FP64;
  const v1::Precision stored = is_fp64 ? v1::PRECISION_FP64 : v1::PRECISION_FP32;
  // If the job names a single type (`precision: bf16`), `reduce` and `output` keep full precision. If it gives a map,
  // they follow from `param`.
  const v1::Precision communicated = policy.has_type() ? stored : out.param();
  if (!out.has_reduce()) out.set_reduce(communicated);
  if (!out.has_output()) out.set_output(communicated);
  if (!out.has_master()) out.set_master(stored);
  if (!out.has_state()) out.set_state(stored);
  return out;
}

void CheckPrecision(const v1::Train& train, v1::Device device, const Positions& positions, Problems* problems) {
  const v1::PrecisionPolicy types = ResolvedPrecision(train.precision());
  if (std::string problem = Contradiction(types); !problem.empty()) {
    problems->AddError(positions, "train.precision", problem);
  }
  const bool scales_loss = types.param() == v1::PRECISION_FP16 || types.reduce() == v1::PRECISION_FP16;
  if (types.param() == v1::PRECISION_FP16 && device != v1::DEVICE_CUDA) {
    problems->AddWarning(positions, "train.precision", "fp16 is slow on a CPU; bf16 is not");
  }
  if (train.has_loss_scale() && !scales_loss) {
    problems->AddWarning(positions, "train.loss_scale", "has no effect: only fp16 needs its losses scaled");
  } else if (scales_loss) {
    CheckLossScale(train.loss_scale(), positions, problems);
  }
  const v1::Optimizer& optimizer = train.optimizer();
  const bool is_eps_zero = !(static_cast<float>(optimizer.eps()) > 0) && types.master() != v1::PRECISION_FP64;
  if (optimizer.has_eps() && is_eps_zero) {
    problems->AddError(positions, "train.optimizer.eps",
                       absl::StrCat("is ", yaml::NumberText(optimizer.eps()),
                                    ", which is 0 in fp32, so that the update of an element that has had no gradient ",
                                    "would be 0 / 0; choose at least 1e-37"));
  }
  if (optimizer.clip_value() > 0 && optimizer.clip_norm() > 0) {
    problems->AddError(positions, "train.optimizer.clip_value",
                       absl::StrCat("cannot be combined with train.optimizer.clip_norm (",
                                    FieldYaml(optimizer, *v1::Optimizer::descriptor()->FindFieldByName("clip_norm")),
                                    "); give one of them"));
  }
}

}  // namespace trainyard
