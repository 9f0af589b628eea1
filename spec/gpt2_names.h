// Names of GPT-2's parameters, as worker/model/gpt2.h has them, for checks that must not wait for a rank. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainyard {

inline std::vector<std::string> Gpt2ParameterNames(uint64_t layers) {
  std::vector<std::string> names = {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"};
  for (uint64_t layer = 0; layer < layers; ++layer) {
    for (const char* part : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"}) {
      for (const char* tensor : {"weight", "bias"}) {
        names.push_back("h." + std::to_string(layer) + "." + part + "." + tensor);
      }
    }
  }
  return names;
}

}  // namespace trainyard
