#include "worker/model/dropout.h"

#include <ATen/Context.h>

#include <mutex>

#include "worker/model/initial_values.h"

namespace trainyard {

void SeedDropout(const DropoutKey& key, int unit, at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(
      CombineSeeds(CombineSeeds(CombineSeeds(key.seed, key.step), key.micro_batch), static_cast<uint64_t>(unit)));
}

}  // namespace trainyard
