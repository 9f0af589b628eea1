#include "spec/precision_rules.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/strict_yaml.h"

namespace trainyard {
namespace {

bool IsHalfWidth(v1::Precision type) { return type == v1::PRECISION_BF16 || type == v1::PRECISION_FP16; }

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
  if (IsHalfWidth(p.reduce()) && p.reduce() != p.param() && p.param() != v1::PRECISION_FP32) {
    return absl::StrCat("reduce ", NameOf(p.reduce()), " cannot be combined with param ", NameOf(p.param()),
                        "; choose ", NameOf(p.param()), " or fp32");
  }
  return "";
}

}  // namespace

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
  }
  const v1::Optimizer& optimizer = train.optimizer();
  if (optimizer.clip_value() > 0 && optimizer.clip_norm() > 0) {
    problems->AddError(positions, "train.optimizer.clip_value",
                       absl::StrCat("cannot be combined with train.optimizer.clip_norm (",
                                    FieldYaml(optimizer, *v1::Optimizer::descriptor()->FindFieldByName("clip_norm")),
                                    "); give one of them"));
  }
}

}  // namespace trainyard
