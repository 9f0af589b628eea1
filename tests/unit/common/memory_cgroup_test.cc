#include "common/memory_cgroup.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

class MemoryCgroup : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::string full = folder_ / path;
    ASSERT_TRUE(MakeFolders(full.substr(0, full.rfind('/'))).ok());
    ASSERT_TRUE(WriteFileAtomically(full, text).ok());
  }
  std::string OwnCgroup() { return MemoryCgroupOf("self", folder_ / "proc"); }

  TemporaryFolder folder_;
};

TEST_F(MemoryCgroup, TightestLimitOfTheCgroupAndItsAncestors_Counts) {
  Write("proc/self/cgroup", "0::/jobs/a\n");
  Write("proc/self/mountinfo", absl::StrCat("36 35 0:30 / ", folder_ / "cg", " rw - cgroup2 cgroup2 rw\n"));
  Write("cg/jobs/a/memory.max", "1000\n");
  Write("cg/jobs/a/memory.current", "300\n");
  Write("cg/jobs/a/memory.stat", "anon 200\ninactive_file 50\nactive_file 50\n");

  EXPECT_EQ(MemoryLeftIn(OwnCgroup()), 750);

  Write("cg/jobs/memory.max", "2000\n");
  Write("cg/jobs/memory.current", "1900\n");
  EXPECT_EQ(MemoryLeftIn(OwnCgroup()), 100);

  Write("cg/jobs/memory.current", "2500\n");
  EXPECT_EQ(MemoryLeftIn(OwnCgroup()), 0) << "never negative";
}

TEST_F(MemoryCgroup, Version1_CountsInactiveFilesOfDescendants) {
  Write("proc/self/cgroup", "4:memory:/x\n0::/x\n");
  Write("proc/self/mountinfo", absl::StrCat("31 25 0:27 / ", folder_ / "mem", " ro - cgroup cgroup rw,memory\n"));
  Write("mem/x/memory.limit_in_bytes", "1000\n");
  Write("mem/x/memory.usage_in_bytes", "600\n");
  Write("mem/x/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");

  EXPECT_EQ(MemoryLeftIn(OwnCgroup()), 600);
}

TEST_F(MemoryCgroup, WithoutALimit_NoValueIsReturned) {
  Write("proc/self/cgroup", "0::/a\n");
  Write("proc/self/mountinfo", absl::StrCat("36 35 0:30 / ", folder_ / "cg", " rw - cgroup2 cgroup2 rw\n"));
  Write("cg/a/memory.max", "max\n");
  Write("cg/a/memory.current", "300\n");

  EXPECT_EQ(MemoryLeftIn(OwnCgroup()), std::nullopt);
  EXPECT_EQ(MemoryLeftIn(""), std::nullopt);
  EXPECT_EQ(MemoryLimitOf(OwnCgroup()), 0u);
}

}  // namespace
}  // namespace trainyard
