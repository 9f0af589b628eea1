// FolderWatch: which changes of files it reports, and to which subscribers.
#include "worker/agent/folder_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::agent {
namespace {

void Append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

bool Becomes(const std::atomic<int>& count, int least) {
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (count < least && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(1));
  return count >= least;
}

class FolderWatching : public testing::Test {
 protected:
  // Waits until all changes so far are reported: a change of another folder is reported after them.
  void Settle() {
    std::atomic<int> last = 0;
    const std::string folder = Folder(absl::StrCat("settle", ++settled_));
    const uint64_t subscriber = watch_.Subscribe([&last] { ++last; });
    ASSERT_TRUE(watch_.Watch(subscriber, folder));
    Append(folder + "/file", "x");
    ASSERT_TRUE(Becomes(last, 1));
    watch_.Unsubscribe(subscriber);
  }
  std::string Folder(const std::string& name) {
    const std::string path = root_.path() + "/" + name;
    std::filesystem::create_directory(path);
    return path;
  }

  TemporaryFolder root_;
  FolderWatch watch_;
  int settled_ = 0;
};

TEST_F(FolderWatching, NotifiesWritesNewFilesAndRenames_ToEverySubscriberOfTheFolder) {
  const std::string folder = Folder("a");
  std::atomic<int> one = 0;
  std::atomic<int> other = 0;
  const uint64_t first = watch_.Subscribe([&one] { ++one; });
  const uint64_t second = watch_.Subscribe([&other] { ++other; });
  ASSERT_TRUE(watch_.Watch(first, folder));
  ASSERT_TRUE(watch_.Watch(second, folder));

  Append(folder + "/stdout", "a line\n");
  EXPECT_TRUE(Becomes(one, 1));
  EXPECT_TRUE(Becomes(other, 1));
  Settle();
  const int written = one;
  Append(folder + "/stdout", "another line\n");
  EXPECT_TRUE(Becomes(one, written + 1));
  Settle();
  const int before = one;
  std::rename((folder + "/stdout").c_str(), (folder + "/stdout.1").c_str());
  EXPECT_TRUE(Becomes(one, before + 1));
}

TEST_F(FolderWatching, DoesNotNotifyOfOtherFolders_NorAfterUnsubscribe) {
  const std::string folder = Folder("a");
  const std::string other = Folder("b");
  std::atomic<int> count = 0;
  const uint64_t subscriber = watch_.Subscribe([&count] { ++count; });
  ASSERT_TRUE(watch_.Watch(subscriber, folder));

  Append(other + "/file", "x");
  Settle();
  EXPECT_EQ(count, 0);
  watch_.Unsubscribe(subscriber);
  Append(folder + "/file", "x");
  Settle();
  EXPECT_EQ(count, 0);
}

TEST_F(FolderWatching, AMissingFolderCannotBeWatched_AndARemovedOneCanOnceItIsRecreated) {
  std::atomic<int> count = 0;
  const uint64_t subscriber = watch_.Subscribe([&count] { ++count; });
  EXPECT_FALSE(watch_.Watch(subscriber, root_.path() + "/none"));
  const std::string folder = Folder("a");
  ASSERT_TRUE(watch_.Watch(subscriber, folder));
  std::filesystem::remove_all(folder);
  Settle();

  ASSERT_TRUE(watch_.Watch(subscriber, Folder("a")));
  const int before = count;
  Append(folder + "/file", "x");

  EXPECT_TRUE(Becomes(count, before + 1));
}

TEST_F(FolderWatching, ConstantWritesAreNotifiedTogether) {
  const std::string folder = Folder("a");
  std::atomic<int> count = 0;
  const uint64_t subscriber = watch_.Subscribe([&count] { ++count; });
  ASSERT_TRUE(watch_.Watch(subscriber, folder));

  constexpr int kWrites = 20'000;
  {
    std::ofstream file(folder + "/stdout");
    for (int i = 0; i < kWrites; ++i) file << "line" << std::endl;
  }
  Settle();

  EXPECT_GE(count, 1);
  EXPECT_LT(count, kWrites / 10);
}

}  // namespace
}  // namespace trainyard::agent
