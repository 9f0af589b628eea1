// Weights that another program has written: checks them against a model's description and reads their values in any
// floating type. Immutable once opened, and thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/weight_files.h"
#include "common/box.h"
#include "models/model_description.h"

namespace trainyard {

struct WeightInfo {
  std::string name;  // as in ModelDescription, without the prefix
  std::string dtype;
  std::vector<int64_t> shape;
};

// Fails with InvalidArgument, which lists every missing and unexpected name, every wrong shape and every type that is
// not floating.
absl::Status CheckWeights(const std::vector<WeightInfo>& weights, const ModelDescription& model);

// The weights of a folder in the form of transformers (weight_files.h). Names may or may not have the prefix in
// HuggingFaceNames. Tensors that are not weights, and a head that equals the token embedding to which it is tied, are
// ignored.
class ForeignWeights {
 public:
  // Fails with the errors of WeightFiles::Open and of CheckWeights, and with InvalidArgument if a name occurs with
  // and without its prefix, or if a head that should be tied differs from the embedding.
  static absl::StatusOr<std::unique_ptr<ForeignWeights>> Open(const std::string& path, const ModelDescription& model);

  // The type in which training holds these values exactly: F64 if the embedding is F64, else F32.
  const std::string& dtype() const { return dtype_; }
  // Writes elements [first, first + count) of a parameter to `out`, in type `dtype`. Fails with the errors of
  // WeightFiles::ReadRange. REQUIRES: `name` is a parameter of the model.
  absl::Status ReadRange(const std::string& name, uint64_t first, uint64_t count, absl::string_view dtype,
                         absl::Span<char> out) const;
  // The same for elements [first, first + count) of a box of the parameter, in row-major order. Reads no other bytes.
  absl::Status ReadBoxRange(const std::string& name, const Box& box, uint64_t first, uint64_t count,
                            absl::string_view dtype, absl::Span<char> out) const;
  // The values of one parameter, dense, in type dtype(). REQUIRES: `name` is a parameter of the model.
  std::string Read(const std::string& name) const;
  // Zeros in place of the values that Read would return, in the same number and type.
  std::string Zeros(const std::string& name) const;

  std::string Identity() const { return files_->Identity(); }

 private:
  ForeignWeights() = default;
  absl::Status MatchNames(const ModelDescription& model);
  absl::Status MatchHead(const ModelDescription& model, const Weight& head);

  std::unique_ptr<WeightFiles> files_;
  std::map<std::string, const Weight*> by_name_;  // as in ModelDescription
  std::string dtype_ = "F32";
};

}  // namespace trainyard
