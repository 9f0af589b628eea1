#include "worker/model/initial_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace trainyard {
namespace {

// splitmix64's finisher: spreads every bit of its input over the output.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void DrawNormal(double deviation, uint64_t seed, const at::Tensor& out) {
  const bool in_place = out.is_cpu() && out.scalar_type() == at::kFloat;
  at::Tensor values = in_place ? out : at::empty(out.sizes(), at::kFloat);
  values.normal_(0, deviation, at::detail::createCPUGenerator(seed));
  if (!in_place) out.copy_(values);
}

}  // namespace

uint64_t CombineSeeds(uint64_t a, uint64_t b) { return Mix(Mix(a + 0x9e3779b97f4a7c15u) + b + 0x9e3779b97f4a7c15u); }

InitialValues DrawInitialValues(const ModelDescription& model, uint64_t seed) {
  std::vector<InitialValue> initial;
  for (const ParameterDescription& parameter : model.parameters) initial.push_back(parameter.initial);
  return [seed, initial = std::move(initial)](int parameter, const at::Tensor& out) {
    const InitialValue& value = initial[static_cast<size_t>(parameter)];
    switch (value.kind) {
      case InitialValue::Kind::kZeros:
        out.fill_(0);
        return;
      case InitialValue::Kind::kOnes:
        out.fill_(1);
        return;
      case InitialValue::Kind::kNormal:
        // Each parameter has a generator of its own, so that a rank can draw some of them without the others.
        DrawNormal(value.deviation, CombineSeeds(seed, static_cast<uint64_t>(parameter)), out);
        return;
    }
  };
}

}  // namespace trainyard
