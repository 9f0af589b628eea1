// Random initial values of parameters, reproducible from a seed. Stateless.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_description.h"
#include "worker/model/model.h"

namespace trainyard {

// A seed of which each bit depends on all bits of both numbers.
uint64_t CombineSeeds(uint64_t a, uint64_t b);

// Draws each parameter of `model` as its description says. The values depend only on `seed`, the number of the
// parameter and its shape: they are drawn in fp32 on the CPU, whatever the type and device of the tensor. Adapters do
// not change the values of the other parameters.
InitialValues DrawInitialValues(const ModelDescription& model, uint64_t seed);

}  // namespace trainyard
