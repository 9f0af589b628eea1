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
// differs from the token embedding's.
absl::Status CheckWeights(const std::vector<WeightInfo>& held, const ModelDescription& model);

// model.safetensors of a folder in the form of transformers. Names may or may not have the prefix. Tensors that are no
// weights, and a head that equals the token embedding, are ignored.
class ForeignWeights {
 public:
  // Fails with the errors of opening the file and of CheckWeights, and with InvalidArgument if the head is not tied or
  // the type is none that weights can have.
  static absl::StatusOr<std::unique_ptr<ForeignWeights>> Open(const std::string& path, const ModelDescription& model);

  // F64 if the file holds that, else F32.
  const std::string& dtype() const { return dtype_; }
  // The values of one parameter, dense, in that type. REQUIRES: it is a parameter of the model.
  std::string Read(const std::string& name) const;
  // Zeros of the same number and type.
  std::string Zeros(const std::string& name) const;

 private:
  explicit ForeignWeights(std::string prefix) : prefix_(std::move(prefix)) {}
  const TensorInfo& Find(const std::string& name) const;

  const std::string prefix_;
  std::unique_ptr<SafetensorsFile> file_;
  std::string dtype_ = "F32";
};

}  // namespace trainyard
