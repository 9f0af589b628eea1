// What a step of a job has to compute and to exchange, as a few numbers: parameters, operations and bytes. Derived from
// the description of the model, so that it holds for every family. Pure.
#pragma once

#include <cstdint>

#include "trainyard/v1/job.pb.h"

namespace trainyard::planner {

// Operations are floating-point operations; a product of m x k by k x n counts 2 m k n. A row is a token, or a sample
// of a classifier.
struct ModelWork {
  uint64_t layers = 1;
  uint64_t global = 1;             // sequences of a step
  uint64_t rows_per_sequence = 1;  // tokens; 1 for a classifier
  double width = 0;                // elements of an activation between blocks, per row

  double block_parameters = 0;      // of one block
  double embedding_parameters = 0;  // of the first stage, outside its blocks
  double head_parameters = 0;       // of the last stage, outside its blocks; a tied matrix is in both
  double root_parameters = 0;       // of the whole model outside its blocks; a tied matrix counts once
  double trained_share = 1;         // of all parameters

  double block_flops = 0;      // forward of one block, per row, with attention
  double attention_flops = 0;  // the part of it that the scores of attention are
  double head_flops = 0;       // forward of the head, per row

  v1::Precision type = v1::PRECISION_FP32;  // of the products
  double param_bytes = 4;                   // of an element in forward and backward
  double reduce_bytes = 4;                  // of a gradient in communication
  double update_bytes = 32;                 // read and written per trained element in an update
  double state_bytes = 12;                  // per trained element: masters and moments

  double bucket_parameters = 0;     // parallel.bucket_elements
  bool overlaps = true;             // parallel.overlap
  bool offloads_optimizer = false;  // the job's own parallel.offload
  bool offloads_parameters = false;

  double rows_per_step() const { return static_cast<double>(global) * static_cast<double>(rows_per_sequence); }
};

// REQUIRES: `spec` trains and is resolved (spec/prepare.h).
ModelWork WorkOf(const v1::JobSpec& spec);

}  // namespace trainyard::planner
