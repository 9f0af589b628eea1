// Which code multiplies matrices, for each shape of weight. A plan decides how products are rounded, so all ranks with
// the same kind of CPU use the same one, and a run keeps it (trainer/kernel_agreement.h).
//
//   ProductPlan plan = ...;
//   UseProductPlan(plan);                     // before the first product of the process
//   ProductPlanInUse().PathOf({ProductLayout::kPlain, 384, 1536})
//
// The number of rows that are multiplied with a weight is not a part of the key: a smaller last micro-batch, an
// evaluation and a recomputed unit use the same code. Pure, except for the plan in use, which does not change after the
// first product.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

enum class ProductPath {
  kMkl,     // MKL's routines; bf16 and fp16 without 16-bit instructions in tiles of fp32 (gemm.h)
  kOneDnn,  // oneDNN, through LibTorch; only whole tensors on CPUs with AVX-512
  kOwn,     // own_gemm.h
};
// "mkl", "onednn", "own".
const char* PathName(ProductPath path);

enum class ProductLayout {
  kPlain,       // x w:   depth = rows of w, columns = columns of w
  kTransposed,  // x w^T: depth = columns of w, columns = rows of w
  kGradient,    // x^T g: depth stands for the rows of the result, columns for its columns
};

struct ProductKey {
  ProductLayout layout = ProductLayout::kPlain;
  int64_t depth = 0;
  int64_t columns = 0;
  auto operator<=>(const ProductKey&) const = default;
};

struct ProductPlan {
  struct Choice {
    ProductKey key;
    ProductPath path = ProductPath::kMkl;
    bool operator==(const Choice&) const = default;
  };
  bool mkl_lever = false;                    // of the process (mkl_lever.h)
  ProductPath others = ProductPath::kMkl;    // of products that are not listed
  ProductPath in_memory = ProductPath::kMkl;  // of products of pieces of tensors, as in attention; not kOneDnn
  std::vector<Choice> choices = {};          // sorted by key, without duplicates

  bool operator==(const ProductPlan&) const = default;
  ProductPath PathOf(const ProductKey& key) const;

  // "lever=0 others=mkl memory=mkl plain:384x1152=own ...": ParsePlan reads it.
  std::string ToString() const;
  // "mkl", "own and mkl": the code in use, for people.
  std::string Summary() const;
};

// Possible errors: InvalidArgument, which names the part that is wrong. A plan has at most kMaxChoices choices.
inline constexpr size_t kMaxChoices = 32;
absl::StatusOr<ProductPlan> ParsePlan(absl::string_view text);

// The plan in which every product uses `path`, and MKL products the lever if `lever`.
ProductPlan UniformPlan(ProductPath path, bool lever);

// Without a call, everything is MKL's. Not thread-safe: call it before products run.
void UseProductPlan(ProductPlan plan);
const ProductPlan& ProductPlanInUse();

}  // namespace trainyard
