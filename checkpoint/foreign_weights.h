// Weights that another program has written: checks them against a model's description and reads their values in the
// types that training uses. Immutable once opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/safetensors.h"
#include "models/model_description.h"

namespace trainyard {

struct WeightInfo {
  std::string name;  // as in ModelDescription, without the prefix
  std::string dtype;
  std::vector<int64_t> shape;
};

// Fails with InvalidArgument, which lists every missing and unexpected name, every wrong shape and every type that
// differs from that of the token embedding.
absl::Status CheckWeights(const std::vector<WeightInfo>& weights, const ModelDescription& model);

// model.safetensors of a folder in the form of transformers. Names may or may not have the prefix. Tensors that
// are not weights, and a head that equals the token embedding, are ignored.
class ForeignWeights {
 public:
  // Fails with the errors of opening the file and of CheckWeights, and with InvalidArgument if the head is not tied or
  // the weights have an unsupported type.
  static absl::StatusOr<std::unique_ptr<ForeignWeights>> Open(const std::string& path, const ModelDescription& model);

  // The type of the values that Read returns: F64 if the file contains that, else F32.
  const std::string& dtype() const { return dtype_; }
  // The values of one parameter, dense, in that type. REQUIRES: it is a parameter of the model.
  std::string Read(const std::string& name) const;
  // As many zeros, in that type.
  std::string Zeros(const std::string& name) const;

 private:
  explicit ForeignWeights(std::string prefix) : prefix_(std::move(prefix)) {}
  const TensorInfo& Find(const std::string& name) const;

  const std::string prefix_;
  std::unique_ptr<SafetensorsFile> file_;
  std::string dtype_ = "F32";
};

}  // namespace trainyard
