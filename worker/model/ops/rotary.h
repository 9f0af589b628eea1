// The rotary position embedding (arXiv:2104.09864) of queries and keys, in the layout of transformers: element i of the
// first half of a head forms a pair with element i of the second half, and each pair is rotated by the product of its
// frequency and the position.
//
// Angles are computed in fp32, and their cosines and sines are rounded to the type of the activations, as transformers
// does in every type; otherwise angles at large positions would differ. The rotation itself is computed in fp32, or in
// fp64 for that type. Our kernel supports fp32 and bf16 on a CPU; all other cases use LibTorch.
//
// Thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/model_sizes.h"

namespace trainyard {

// The frequencies of a head's pairs, fp32 [head_width / 2], on the CPU.
at::Tensor RotaryFrequencies(const Rope& rope, int64_t head_width);

// Cosines and sines of positions 0, 1, ...: [positions, head_width / 2]. They are rounded to the type of the
// activations and stored in fp32, or in fp64 if that is the type.
struct RotaryTable {
  at::Tensor cosines, sines;
};
RotaryTable MakeRotaryTable(const Rope& rope, int64_t head_width, int64_t positions, const at::TensorOptions& options);

// The table whose row i is that of position positions[i] (int64): for tokens that do not follow one another from 0.
RotaryTable RowsOf(const RotaryTable& table, const at::Tensor& positions);

// Rotates the heads of `x`, [sequences, tokens, heads x head_width], whose tokens have the positions 0, 1, ..., or
// those of `positions`, int64 [sequences, tokens], if that is defined. Returns a dense tensor, which can be
// differentiated once. REQUIRES: the table was made for x's type and device, and has all these positions.
at::Tensor Rotate(const at::Tensor& x, const RotaryTable& table, const at::Tensor& positions = {});

}  // namespace trainyard
