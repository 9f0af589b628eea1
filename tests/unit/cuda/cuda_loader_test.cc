// The loader's errors for libraries that it cannot use.
#include "worker/cuda/cuda_loader.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(OpenCudaPlugin, MissingLibrary_SaysHowToBuildIt) {
  absl::Status status = OpenCudaPlugin("/nowhere/libtrainyard_cuda.so").status();

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/nowhere/libtrainyard_cuda.so does not exist"), HasSubstr("./dev setup full"),
                    HasSubstr("resources.device to cpu")));
}

TEST(OpenCudaPlugin, InvalidLibrary_ReportsTheSystemError) {
  TemporaryFolder folder;
  const std::string path = folder / "libtrainyard_cuda.so";
  ASSERT_TRUE(WriteFileAtomically(path, "no library").ok());

  absl::Status status = OpenCudaPlugin(path).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(path), HasSubstr("full torch wheel")));
}

TEST(OpenCudaPlugin, UnrelatedLibrary_IsRefused) {
  Dl_info known = {};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&dlopen), &known), 0);

  absl::Status status = OpenCudaPlugin(known.dli_fname).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not a GPU plugin of Trainyard"));
}

}  // namespace
}  // namespace trainyard
