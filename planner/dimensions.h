// The dimensions along which a layout divides the work of a step, with the names of FlexFlow (arXiv:1807.05358). Pure.
//
//   sample     data ranks and micro-batches divide the sequences: 10 x 512 becomes 5 x 2 x 512
//   attribute  tensor ranks divide the tokens (parallel.sequence): 10 x 512 becomes 10 x 2 x 256
//   parameter  tensor ranks divide matrices, stages divide blocks, sharding divides the stored parameters
//   operator   one operation in several at once, such as mean and deviation of a norm on two devices: never, because a
//              fused kernel computes both in the time of one read, and exchanging them would take longer
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout.h"

namespace trainyard::planner {

// The sizes of a batch: sequences, then positions, as "10 x 512".
using BatchShape = std::vector<uint64_t>;
std::string ShapeText(const BatchShape& shape);

// Each of `parts` gets an equal number of sequences: {10, 512} in 2 is {5, 2, 512}. REQUIRES: parts divides shape[0].
BatchShape SplitSamples(const BatchShape& shape, uint64_t parts);

// Each of `parts` gets equal ranges of the positions: {10, 512} in 2 is {10, 2, 256}. REQUIRES: parts divides the last
// size.
BatchShape SplitAttributes(const BatchShape& shape, uint64_t parts);

struct Dimensions {
  uint64_t sample = 1;     // data ranks
  uint64_t attribute = 1;  // tensor ranks that divide the sequence
  uint64_t parameter = 1;  // ranks among which the computation of a micro-batch is divided: stages x tensor
  uint64_t shards = 1;     // ranks among which the stored parameters are divided in addition
};
Dimensions DimensionsOf(const Layout& layout);

// "sample 8, attribute 2, parameter 4".
std::string DimensionsText(const Dimensions& dimensions);

}  // namespace trainyard::planner
