#include "spec/device_rules.h"

namespace trainyard {

std::string WhyNotOnGpu(const v1::JobSpec& spec) {
  if (spec.has_command()) {
    return "the command chooses its device itself; resources.device cuda places it on hosts with GPUs";
  }
  if (spec.has_probe()) return "a probe measures the CPU unless resources.device is cuda";
  if (spec.parallel().tensor() > 1 && spec.train().model().dropout() > 0) {
    return "dropout in attention with parallel.tensor above 1 is supported on CPUs only";
  }
  const v1::PrecisionPolicy& types = spec.train().precision();
  if (types.master() == v1::PRECISION_BF16 || types.state() != types.master()) {
    return "train.precision has types of master weights or moments that only the optimizer on CPUs supports";
  }
  return "";
}

bool NeedsBfloat16(const v1::JobSpec& spec) {
  const v1::PrecisionPolicy& types = spec.train().precision();
  return types.param() == v1::PRECISION_BF16 || types.reduce() == v1::PRECISION_BF16;
}

}  // namespace trainyard
