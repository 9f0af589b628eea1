#include "spec/precision_rules.h"

namespace trainyard {

v1::PrecisionPolicy ResolvedPrecision(const v1::PrecisionPolicy& policy) {
  v1::PrecisionPolicy out = policy;
  out.clear_type();
  if (!out.has_param()) out.set_param(policy.has_type() ? policy.type() : v1::PRECISION_FP32);
  const bool wide = out.param() == v1::PRECISION_FP64;
  const v1::Precision kept = wide ? v1::PRECISION_FP64 : v1::PRECISION_FP32;
  // A word means the usual recipe; a map says what travels by saying what is computed with.
  const v1::Precision travels = policy.has_type() ? kept : out.param();
  if (!out.has_reduce()) out.set_reduce(travels);
  if (!out.has_output()) out.set_output(travels);
  if (!out.has_master()) out.set_master(kept);
  if (!out.has_state()) out.set_state(kept);
  return out;
}

}  // namespace trainyard
