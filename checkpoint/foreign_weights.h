// The weights of a GPT-2 that somebody else has written: whether they are those that its sizes ask for, and their
// values in the types that we train in. Immutable once opened.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/safetensors.h"

namespace trainyard {

struct WeightInfo {
  std::string name;  // ours, without a prefix
  std::string dtype;
  std::vector<int64_t> shape;
};

// Possible errors: InvalidArgument with every name that is missing or unexpected, every wrong shape and every type that
// differs from the token embedding's.
absl::Status CheckWeights(const std::vector<WeightInfo>& held, const Gpt2Sizes& sizes);

// model.safetensors of a folder in the form of transformers. Names may begin with "transformer."; the masks that old
// files hold beside the weights (attn.bias, attn.masked_bias) are passed over, and so is a head that equals the token
// embedding.
class ForeignWeights {
 public:
  // Possible errors: those of opening the file and of CheckWeights; InvalidArgument: a head of its own, or a type that
  // no weights have.
  static absl::StatusOr<std::unique_ptr<ForeignWeights>> Open(const std::string& path, const Gpt2Sizes& sizes);

  // F64 where the file holds that, else F32.
  const std::string& dtype() const { return dtype_; }
  // The values of one parameter, dense, in that type. REQUIRES: it is one of Gpt2Parameters().
  std::string Read(const std::string& name) const;
  // As many zeros.
  std::string Zeros(const std::string& name) const;

 private:
  ForeignWeights() = default;
  const TensorInfo& Find(const std::string& name) const;

  std::unique_ptr<SafetensorsFile> file_;
  std::string dtype_ = "F32";
};

}  // namespace trainyard
