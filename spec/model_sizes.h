// Converts `train.model` of a job file to the ModelSizes that all other code uses, and back. Pure.
#pragma once

#include "models/model_sizes.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Keys that are not given have the defaults of ModelSizes; the preset is not applied.
ModelSizes SizesOfModel(const v1::Model& model);

// Sets every key that SizesOfModel reads, except the family, whose default is the only one.
void SetModelSizes(const ModelSizes& sizes, v1::Model& model);

}  // namespace trainyard
