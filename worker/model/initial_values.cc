#include "worker/model/initial_values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "models/lora_targets.h"

namespace trainyard {
namespace {

constexpr uint64_t kAdapterSeed = 0x6c6f7261;  // "lora"; differs from every number of a parameter

// splitmix64's finisher: spreads every bit of its input over the output.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Draws values of kNormal or kUniform.
void Draw(const InitialValue& value, uint64_t seed, const at::Tensor& out) {
  const bool in_place = out.is_cpu() && out.scalar_type() == at::kFloat;
  at::Tensor values = in_place ? out : at::empty(out.sizes(), at::kFloat);
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  if (value.kind == InitialValue::Kind::kNormal) {
    values.normal_(0, value.deviation, generator);
  } else {
    values.uniform_(-value.bound, value.bound, generator);
  }
  if (!in_place) out.copy_(values);
}

// The seed of each parameter. Parameters of adapters are numbered on their own, so that the other parameters have the
// same values as in a model without adapters.
std::vector<uint64_t> SeedsOf(const ModelDescription& model, uint64_t seed) {
  const uint64_t adapter_seed = CombineSeeds(seed, kAdapterSeed);
  uint64_t next = 0, next_of_adapters = 0;
  std::vector<uint64_t> seeds;
  for (const ParameterDescription& parameter : model.parameters) {
    seeds.push_back(IsAdapterName(parameter.name) ? CombineSeeds(adapter_seed, next_of_adapters++)
                                                  : CombineSeeds(seed, next++));
  }
  return seeds;
}

}  // namespace

uint64_t CombineSeeds(uint64_t a, uint64_t b) { return Mix(Mix(a + 0x9e3779b97f4a7c15u) + b + 0x9e3779b97f4a7c15u); }

InitialValues DrawInitialValues(const ModelDescription& model, uint64_t seed) {
  std::vector<InitialValue> initial;
  for (const ParameterDescription& parameter : model.parameters) initial.push_back(parameter.initial);
  // Each parameter has a generator of its own, so that a rank can draw some of them without the others.
  return [seeds = SeedsOf(model, seed), initial = std::move(initial)](int parameter, const at::Tensor& out) {
    const InitialValue& value = initial[static_cast<size_t>(parameter)];
    switch (value.kind) {
      case InitialValue::Kind::kZeros:
        out.fill_(0);
        return;
      case InitialValue::Kind::kOnes:
        out.fill_(1);
        return;
      case InitialValue::Kind::kNormal:
      case InitialValue::Kind::kUniform:
        Draw(value, seeds[static_cast<size_t>(parameter)], out);
        return;
    }
  };
}

}  // namespace trainyard
