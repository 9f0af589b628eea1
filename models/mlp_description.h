// A classifier of numbers: linear layers with ReLU between them, as torch.nn.Sequential of Linear and ReLU.
//
// The sizes have these meanings: `context` is the number of features, `vocabulary` the number of classes, `layers` the
// number of hidden layers, and `width` the number of outputs of each hidden layer. Matrices are [out, in], as in
// PyTorch:
//
//   head.{weight [classes, width], bias}
//   layers.0.{weight [width, features], bias}      layers.N.{weight [width, width], bias}
//
// Parameters are numbered in this order. Units: 0 is the root (the head), N + 1 is hidden layer N. Matrices begin with
// values of a normal distribution of variance 2 / in (arXiv:1502.01852), biases with 0.
#pragma once

#include "models/model_description.h"

namespace trainyard {

// REQUIRES: CheckSizes(sizes).
ModelDescription DescribeMlp(const ModelSizes& sizes);

uint64_t CountMlpParameters(const ModelSizes& sizes);

}  // namespace trainyard
