// `train.model` of a job file as the sizes that the rest of the program works with, and back. Pure.
#pragma once

#include <cstdint>

#include "models/model_sizes.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Returns the sizes of a model. Keys that are not given have the defaults of the family; the preset is not applied.
// Keys that the family does not have are ignored.
ModelSizes SizesOfModel(const v1::Model& model);

// Returns the sizes of a model with the adapters of `train.lora`, whose missing keys have their defaults.
ModelSizes SizesOf(const v1::Train& train);

// Sets every key that SizesOfModel reads for the family.
void SetModelSizes(const ModelSizes& sizes, v1::Model& model);

// The number of tokens in a training sequence of a resolved job. Jobs of earlier versions, which do not have the key
// train.batch.length, use the whole context.
int64_t SequenceLength(const v1::Train& train);

// The same for a job that is not resolved yet: decides `auto`. Published models have contexts that are too long for
// most hosts, so their sequences are shorter unless the job says otherwise.
inline constexpr int64_t kAutoLengthMax = 2048;
int64_t DecidedLength(const v1::Train& train);

}  // namespace trainyard
