#include "common/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "common/exit_codes.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

constexpr size_t kMappedBytes = 100'000;

class MappedFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<MappedFile> OpenNew(const std::string& name) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, std::string(kMappedBytes, 'x')).ok());
    absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(folder_ / name);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  const TemporaryFolder folder_;
};

// Runs in a process that the test expects to end.
void CutAndReadTheEnd(const MappedFile& file) {
  if (truncate(file.path().c_str(), 10) != 0) _exit(7);
  const volatile char* const bytes = file.bytes().data();
  _exit(bytes[kMappedBytes - 1] == 'x' ? 8 : 9);
}

TEST_F(MappedFileTest, ItsBytesAreThoseOfTheFile_WhichMayBeEmpty) {
  const auto file = OpenNew("data");
  ASSERT_TRUE(WriteFileAtomically(folder_ / "empty", "").ok());

  EXPECT_EQ(file->bytes(), std::string(kMappedBytes, 'x'));
  EXPECT_EQ(file->info().st_size, static_cast<off_t>(kMappedBytes));
  EXPECT_EQ((*MappedFile::Open(folder_ / "empty"))->bytes(), "");
}

TEST_F(MappedFileTest, AFifoOrAMissingFile_IsAnErrorWithItsName) {
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);

  EXPECT_THAT(std::string(MappedFile::Open(folder_ / "fifo").status().message()), HasSubstr("fifo is a FIFO"));
  EXPECT_TRUE(absl::IsNotFound(MappedFile::Open(folder_ / "missing").status()));
}

TEST_F(MappedFileTest, AFileThatBecomesShorter_EndsTheProcessWithItsNameAndBothSizes) {
  const auto file = OpenNew("data.txt");

  EXPECT_EXIT(CutAndReadTheEnd(*file), ExitedWithCode(kExitFailed),
              "data.txt has become shorter while it was in use: it had 100000 bytes when it was opened and has 10 now");
}

TEST_F(MappedFileTest, OfSeveralFiles_TheOneThatCannotBeReadIsNamed) {
  auto first = OpenNew("first"), second = OpenNew("second");
  first.reset();
  const auto third = OpenNew("third");

  EXPECT_EXIT(CutAndReadTheEnd(*second), ExitedWithCode(kExitFailed), "second has become shorter");
  EXPECT_EXIT(CutAndReadTheEnd(*third), ExitedWithCode(kExitFailed), "third has become shorter");
}

TEST_F(MappedFileTest, AFileThatIsReplaced_StaysReadable) {
  const auto file = OpenNew("data");

  ASSERT_TRUE(WriteFileAtomically(folder_ / "data", "short").ok());

  EXPECT_EQ(file->bytes(), std::string(kMappedBytes, 'x'));
}

#ifndef TRAINYARD_SANITIZED
TEST_F(MappedFileTest, SigbusWithAnotherCause_StillKillsTheProcess) {
  const auto file = OpenNew("data");

  EXPECT_EXIT(raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
}
#endif

}  // namespace
}  // namespace trainyard
