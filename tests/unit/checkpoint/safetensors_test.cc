#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tests/unit/checkpoint/testing.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

// The first 8 bytes of a file: the length of its header, little-endian.
std::string EncodedLength(uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenBytes(const TemporaryFolder& folder, const std::string& bytes) {
  std::string path = folder / "file.safetensors";
  EXPECT_TRUE(WriteFileAtomically(path, bytes).ok());
  return SafetensorsFile::Open(path);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenHeader(const TemporaryFolder& folder, const std::string& header,
                                                            size_t data_bytes) {
  return OpenBytes(folder, EncodedLength(header.size()) + header + std::string(data_bytes, 'x'));
}

TEST(SafetensorsTest, Open_HeaderWrittenBySafetensorsHeader_FindsEveryTensor) {
  TemporaryFolder folder;
  std::vector<TensorInfo> tensors = {{.name = "a", .dtype = "F64", .shape = {2}},
                                     {.name = "b", .dtype = "U8", .shape = {3, 1}}};

  std::string header = SafetensorsHeader(tensors, {{"format", "pt"}});
  auto file = OpenBytes(folder, header + std::string(16, '1') + "234");

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(header.size() % 8, 0u);
  ASSERT_NE((*file)->Find("b"), nullptr);
  EXPECT_EQ((*file)->Bytes(*(*file)->Find("b")), "234");
  EXPECT_EQ((*file)->Find("a")->shape, std::vector<int64_t>{2});
  EXPECT_EQ((*file)->Find("c"), nullptr);
}

// A mapping of such a file would end the process by SIGBUS.
TEST(SafetensorsTest, CheckHeader_OfAFileThatIsCutMeanwhile_IsDataLoss) {
  TemporaryFolder folder;
  std::vector<TensorInfo> tensors = {{.name = "a", .dtype = "F64", .shape = {2}}};
  const std::string path = folder / "file.safetensors", header = SafetensorsHeader(tensors, {});
  const uint64_t bytes = header.size() + 16;
  ASSERT_TRUE(WriteFileAtomically(path, header + std::string(16, '1')).ok());
  const int fd = open(path.c_str(), O_RDONLY);
  ASSERT_GE(fd, 0);

  EXPECT_TRUE(CheckSafetensorsHeader(fd, path, bytes).ok());
  EXPECT_THAT(std::string(CheckSafetensorsHeader(fd, path, bytes + 1).message()),
              HasSubstr("its tensors take 16 bytes"));
  for (const uint64_t left : {header.size() - 1, uint64_t{8}, uint64_t{0}}) {
    std::filesystem::resize_file(path, left);
    EXPECT_TRUE(absl::IsDataLoss(CheckSafetensorsHeader(fd, path, bytes))) << left;
  }
  close(fd);
}

TEST(SafetensorsTest, Open_FileWithAScalarAndAnEmptyTensor_FindsBoth) {
  TemporaryFolder folder;

  auto file = OpenHeader(folder,
                         R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                         R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]}})",
                         4);

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tensors().size(), 2u);
}

TEST(SafetensorsTest, Open_OfInvalidFiles_ReportsTheProblem) {
  struct Case {
    std::string bytes;
    std::string expected;
  };
  auto with_header = [](const std::string& header, size_t data) {
    return EncodedLength(header.size()) + header + std::string(data, 'x');
  };
  const std::vector<Case> cases = {
      {"", "too short"},
      {"1234567", "too short"},
      {EncodedLength(10) + "{}", "announce a header of 10 bytes"},
      {EncodedLength(uint64_t{1} << 63) + "{}", "is not a safetensors file"},
      {"root:x:0:0:root:/root:/bin/bash\n", "is not a safetensors file"},
      {EncodedLength(200'000'000) + "{}", "is not a safetensors file"},
      {with_header("[]", 0), "is not a safetensors file"},
      {with_header("{\"a\":", 0), "not a JSON object"},
      {with_header("{}", 3), "take 0 bytes, but the file contains 3"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                   R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                   4),
       "names 'a' twice"},
      {with_header(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4), "unknown dtype 'F33'"},
      {with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4), "takes 8 bytes"},
      {with_header(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), "not a size"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4), "not a size"},
      {with_header(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4),
       "too many elements"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4), "its range is [4, 0)"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), "is not a list of two numbers"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8), "begins at 4"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
                   6),
       "begins at 2"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4), "expected exactly"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3), "the file contains 3"},
  };
  for (const Case& c : cases) {
    TemporaryFolder folder;

    auto file = OpenBytes(folder, c.bytes);

    EXPECT_FALSE(file.ok()) << "expected the error: " << c.expected;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.expected));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("file.safetensors"));
  }
}

TEST(SafetensorsTest, Open_OfAMissingFile_IsNotFound) {
  EXPECT_EQ(SafetensorsFile::Open("/nonexistent/x.safetensors").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace trainyard
