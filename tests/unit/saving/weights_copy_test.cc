// checkpoint.weights_copy, in whole runs of several ranks.
#include <gmock/gmock.h>

#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "checkpoint/safetensors.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/trainer/strategies_fixture.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {
namespace {

using ::testing::SizeIs;

std::string ReadWhole(const Checkpoint& checkpoint, const char* role, const ManifestTensor& tensor,
                      const std::string& dtype) {
  std::string bytes(CountElements(tensor.shape).value() * DtypeBytes(dtype), '\0');
  EXPECT_EQ(checkpoint.ReadTensor(role, tensor.name, dtype, tensor.shape, {bytes.data(), bytes.size()}),
            absl::OkStatus());
  return bytes;
}

// Expects every parameter under its name, each value rounded once.
void ExpectCopies(const Checkpoint& checkpoint, const SafetensorsFile& copy, const std::string& dtype) {
  size_t parameters = 0;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role != kParameterRole) continue;
    ++parameters;
    const TensorInfo* found = copy.Find(tensor.name);
    ASSERT_TRUE(found != nullptr && found->shape == tensor.shape) << tensor.name;
    EXPECT_EQ(found->dtype, dtype);
    EXPECT_EQ(ReadWhole(checkpoint, kCopyRole, tensor, dtype),
              ConvertValues(ReadWhole(checkpoint, kParameterRole, tensor, tensor.dtype), tensor.dtype, dtype))
        << tensor.name;
  }
  EXPECT_THAT(copy.tensors(), SizeIs(parameters));
}

// Works with every checkpoint.format; no run resumes from the copy.
TEST_F(StrategiesTest, WeightsCopy_HoldsEveryWholeParameterRoundedToItsType) {
  const auto alone = Run(Order("alone", {"ddp", 1}, 4));
  const TemporaryFolder memory;
  for (const Layout& layout : {Layout{"fsdp", 2}, Layout{"ddp", 2}, Layout{"zero1", 3}}) {
    for (const bool full : {false, true}) {
      StartOrder order = Order(absl::StrCat(layout.strategy, full), layout, 2);
      order.config.checkpoint_every = 1;
      order.config.checkpoint_full = full;
      order.snapshot_folder = memory.path();
      order.config.checkpoint_copy = full ? "F16" : "BF16";
      Run(order);

      // The copy of step 1 was written while training continued.
      const std::string path = JoinPath(order.config.checkpoint_dir, StepFolderName(1));
      auto checkpoint = Checkpoint::Open(path);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const std::string name = full ? "weights-fp16.safetensors" : "weights-bf16.safetensors";
      auto copy = SafetensorsFile::Open(JoinPath(path, name));
      ASSERT_TRUE(copy.ok()) << copy.status();
      ExpectCopies(**checkpoint, **copy, order.config.checkpoint_copy);
      auto resharded =
          ReshardCheckpoint(**checkpoint, {}, JoinPath(order.config.checkpoint_dir, "resharded"), FileSystem::Real());
      ASSERT_TRUE(resharded.ok()) << resharded.status();
      for (const ManifestTensor& tensor : Checkpoint::Open(resharded->path).value()->manifest().tensors) {
        EXPECT_NE(tensor.role, kCopyRole) << "a copy is not part of the state";
      }

      // No run resumes from the copy, so damage to it does not make the checkpoint unusable.
      FlipByte(JoinPath(JoinPath(order.config.checkpoint_dir, StepFolderName(2)), name), 6000);
      order.resume = true;
      order.config.steps = 4;
      const std::vector<StepRecord> found = Run(order)->links[0]->steps();
      ASSERT_THAT(found, SizeIs(2));
      for (size_t i = 0; i < 2; ++i) ExpectNear(found[i].loss, alone->links[0]->steps()[2 + i].loss);
    }
  }
}

TEST_F(StrategiesTest, WeightsCopy_OfDoubles_IsRoundedOnce) {
  StartOrder order = Order("doubles", {"fsdp", 2}, 2);
  auto& precision = order.config.precision;
  for (std::string* type :
       {&precision.param, &precision.reduce, &precision.output, &precision.master, &precision.state})
    *type = "fp64";
  order.config.checkpoint_copy = "F16";
  Run(order);

  const std::string path = JoinPath(order.config.checkpoint_dir, StepFolderName(2));
  auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ExpectCopies(**checkpoint, **SafetensorsFile::Open(JoinPath(path, "weights-fp16.safetensors")), "F16");
}

}  // namespace
}  // namespace trainyard
