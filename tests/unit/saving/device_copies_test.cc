#include "worker/saving/device_copies.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard {
namespace {

using ::testing::IsEmpty;

// This test runs on a CPU: memory and order are as on a GPU, but the memory is not pinned and there is no stream.
TEST(DeviceCopiesTest, MemoryIsReused_UnlessItIsStillRead) {
  DeviceCopies copies(nullptr);
  EXPECT_THAT(copies.Copy({}), IsEmpty());
  std::vector<at::Tensor> first = copies.Copy({at::full({3}, 1.0), at::full({2, 2}, 2.0)});
  EXPECT_EQ(first[1][1][1].item<float>(), 2);

  std::vector<at::Tensor> second = copies.Copy({at::full({3}, 5.0), at::full({2, 2}, 6.0)});
  EXPECT_EQ(first[0][0].item<float>(), 1) << "the first copy must not change: a writer that hangs may still read it";
  EXPECT_EQ(second[0][0].item<float>(), 5);
  const void* memory = second[0].const_data_ptr();
  second.clear();

  std::vector<at::Tensor> third = copies.Copy({at::full({3}, 7.0), at::full({5}, 8.0)});
  EXPECT_EQ(third[0].const_data_ptr(), memory);
  EXPECT_EQ(third[0][2].item<float>(), 7);
  EXPECT_EQ(third[1].numel(), 5) << "a tensor of another shape gets new memory";
}

}  // namespace
}  // namespace trainyard
