// Log lines reach standard error completely and in order, text from outside cannot forge lines, and a blocked reader
// does not block threads that log.
#include "common/logging.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/log_rate_limiter.h"
#include "common/log_writer.h"
#include "common/rpc_logging.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Duration kLong = absl::Seconds(30);

class Pipe {
 public:
  Pipe() {
    if (pipe2(fds_, O_CLOEXEC) != 0) std::abort();
    capacity_ = static_cast<size_t>(fcntl(fds_[1], F_SETPIPE_SZ, 4096));
  }
  ~Pipe() {
    if (fds_[0] >= 0) close(fds_[0]);
    close(fds_[1]);
  }
  int in() const { return fds_[1]; }
  void Fill() const { EXPECT_EQ(write(fds_[1], std::string(capacity_, '#').data(), capacity_), ssize_t(capacity_)); }
  void CloseReader() { close(std::exchange(fds_[0], -1)); }
  // Reads until `enough` returns true.
  template <typename Enough>
  std::string Read(Enough enough) const {
    std::string text;
    while (!enough(text)) {
      pollfd ready = {fds_[0], POLLIN, 0};
      if (poll(&ready, 1, 30'000) <= 0) {
        ADD_FAILURE() << "no more text arrived within 30 s after: " << text;
        break;
      }
      char buffer[4096];
      text.append(buffer, static_cast<size_t>(read(fds_[0], buffer, sizeof buffer)));
    }
    return text;
  }
  std::string ReadLines(size_t count) const {
    return Read([&](const std::string& text) {
      return static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) >= count;
    });
  }

 private:
  int fds_[2] = {-1, -1};
  size_t capacity_ = 0;
};

LogWriter::Options OptionsFor(int fd, size_t queue_bytes = 1000) {
  return {.fd = fd, .queue_bytes = queue_bytes, .format_dropped = [](uint64_t lines) {
            return absl::StrCat(lines, " dropped\n");
          }};
}

TEST(LogWriter, BlockedReader_DoesNotBlockWriters_AndTheGapIsCounted) {
  Pipe pipe;
  pipe.Fill();
  LogWriter writer(OptionsFor(pipe.in()));

  for (int i = 0; i < 5000; ++i) writer.Push(absl::StrCat(i, "\n"));

  EXPECT_FALSE(writer.Flush(absl::ZeroDuration()));
  EXPECT_FALSE(writer.idle());
  EXPECT_GT(writer.dropped(), 3000u);
  std::string text = pipe.Read([](const std::string& read) { return absl::StrContains(read, "dropped\n"); });
  EXPECT_TRUE(writer.Flush(kLong));
  writer.Push("after\n");
  text += pipe.ReadLines(1);
  text.erase(0, text.find_first_not_of('#'));
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines.back(), "after");
  lines.pop_back();
  // There may be several gaps, because the writer frees space in the queue when it removes lines.
  uint64_t next = 0;
  for (const std::string& line : lines) {
    uint64_t gap = 0;
    if (absl::SimpleAtoi(absl::StripSuffix(line, " dropped"), &gap) && absl::EndsWith(line, " dropped")) {
      next += gap;
    } else {
      EXPECT_EQ(line, absl::StrCat(next++));
    }
  }
  EXPECT_EQ(next, 5000u) << "missing lines are counted where they are missing";
}

TEST(LogWriter, RefusedLines_AreCounted_AndReportedOnceWritesSucceed) {
  Pipe pipe;
  const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  LogWriter writer(OptionsFor(fd));
  for (const char* line : {"one\n", "two\n"}) {
    writer.Push(line);
    EXPECT_TRUE(writer.Flush(kLong));
  }
  EXPECT_EQ(writer.dropped(), 2u);

  dup2(pipe.in(), fd);
  writer.Push("three\n");

  EXPECT_EQ(pipe.ReadLines(2), "2 dropped\nthree\n");
  EXPECT_TRUE(writer.Flush(kLong));
  close(fd);
}

TEST(LogWriter, LineLongerThanTheQueue_IsCounted_AndLaterLinesAreWritten) {
  Pipe pipe;
  LogWriter writer(OptionsFor(pipe.in(), 10));

  writer.Push("a line that is longer than the queue\n");
  EXPECT_TRUE(writer.Flush(kLong));
  writer.Push("later\n");

  EXPECT_EQ(pipe.ReadLines(2), "1 dropped\nlater\n");
  EXPECT_TRUE(writer.Flush(kLong));
  EXPECT_EQ(writer.dropped(), 1u);
}

TEST(LogWriter, ClosedReader_DoesNotEndTheProcess) {
  Pipe pipe;
  pipe.CloseReader();
  LogWriter writer(OptionsFor(pipe.in()));

  writer.Push("no reader\n");

  EXPECT_TRUE(writer.Flush(kLong));
  EXPECT_EQ(writer.dropped(), 1u);
}

TEST(Logging, TextFromOutside_IsEscapedOnOneLine) {
  Pipe pipe;
  InitLogging({.program = "test", .fd = pipe.in()});

  spdlog::info("cancelled: {}", "\x1b[2Jenough\n2026-01-01 I coordinator[1] all is well\xff");

  const std::string text = pipe.ReadLines(1);
  EXPECT_THAT(text, HasSubstr(R"(cancelled: \x1b[2Jenough\x0a2026-01-01 I coordinator[1] all is well\xff)"));
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(Logging, JsonLines_AreValidFromEveryLibrary) {
  Pipe pipe;
  InitLogging({.program = "test", .json = true, .fd = pipe.in()});
  RouteRpcLogs();
  gpr_log_verbosity_init();  // the first use of gRPC does this

  spdlog::warn("a \"quoted\"\x1b\n\xff line");
  gpr_log("src/core/ext/transport/chttp2_transport.cc", 7, GPR_LOG_SEVERITY_ERROR, "GOAWAY %d", 11);
  GOOGLE_LOG(ERROR) << "invalid UTF-8";

  std::vector<std::string> messages;
  for (absl::string_view line : absl::StrSplit(pipe.ReadLines(3), '\n', absl::SkipEmpty())) {
    auto json = nlohmann::json::parse(std::string(line), nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << line;
    messages.push_back(absl::StrCat(json["level"].get<std::string>(), " ", json["message"].get<std::string>()));
  }
  EXPECT_THAT(messages, ElementsAre("warning a \"quoted\"\x1b\n\xef\xbf\xbd line",
                                    "error gRPC chttp2_transport.cc:7: GOAWAY 11", HasSubstr("invalid UTF-8")));
}

TEST(Logging, LinesForTheJournal_HaveAPriorityAndNoTime) {
  Pipe pipe;
  struct stat info;
  ASSERT_EQ(fstat(pipe.in(), &info), 0);
  setenv("JOURNAL_STREAM", absl::StrCat(info.st_dev, ":", info.st_ino).c_str(), 1);
  InitLogging({.program = "test", .level = "debug", .fd = pipe.in()});
  spdlog::debug("d");
  spdlog::info("<0>i\n<0>x");
  spdlog::warn("w");
  spdlog::error("e");
  EXPECT_EQ(pipe.ReadLines(4), "<7>d\n<6><0>i\\x0a<0>x\n<4>w\n<3>e\n");

  InitLogging({.program = "test", .json = true, .fd = pipe.in()});
  spdlog::warn("w");
  EXPECT_THAT(pipe.ReadLines(1), StartsWith("<4>{\"time\":"));
  setenv("JOURNAL_STREAM", "1:1", 1);
  InitLogging({.program = "test", .fd = pipe.in()});
  spdlog::warn("w");
  EXPECT_THAT(pipe.ReadLines(1), HasSubstr(" W test["));
  unsetenv("JOURNAL_STREAM");
}

TEST(Logging, FileIsRotated_AndReloadingOpensItAgainAndChangesTheLevel) {
  const TemporaryFolder folder;
  const std::string path = folder / "daemon.log";
  ASSERT_TRUE(
      OpenLog({.program = "test", .level = "warning", .file = {.path = path, .max_bytes = 100, .max_files = 1}}).ok());
  spdlog::warn("the first line of this log");
  spdlog::warn("the second line, for which the file has no space");
  ASSERT_TRUE(FlushLogging());
  EXPECT_THAT(*ReadFile(path + ".1"), HasSubstr("the first line"));
  spdlog::info("not logged");
  ASSERT_EQ(std::rename(path.c_str(), (path + ".moved").c_str()), 0);
  ReloadLog(std::string("info"));
  spdlog::info("logged");
  ASSERT_TRUE(FlushLogging());
  const std::string text = *ReadFile(path + ".1") + *ReadFile(path);
  EXPECT_THAT(text, HasSubstr("SIGHUP: the level of the log is info; its file was opened again"));
  EXPECT_THAT(text, HasSubstr("] logged"));
  EXPECT_THAT(text, Not(HasSubstr("not logged")));
  ReloadLog(absl::InvalidArgumentError("line 3: unknown key"));
  ASSERT_TRUE(FlushLogging());
  EXPECT_THAT(*ReadFile(path), HasSubstr("line 3: unknown key"));
  EXPECT_FALSE(OpenLog({.program = "test", .file = {.path = folder.path()}}).ok());
}

// Runs a process that logs to `pipe` and then calls `end`. Returns its exit status.
template <typename End>
int StatusOf(const Pipe& pipe, End end) {
  const pid_t child = fork();
  if (child == 0) {
    InitLogging({.program = "child", .fd = pipe.in()});
    spdlog::error("last line");
    end();
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Logging, EndingProcess_WritesAllLines_AndEndsEvenWithoutAReader) {
  Pipe pipe;
  Pipe full;
  full.Fill();

  EXPECT_EQ(StatusOf(pipe, [] { std::exit(0); }), 0);
  EXPECT_THAT(pipe.ReadLines(1), HasSubstr("last line"));
  EXPECT_EQ(StatusOf(full, [] { std::exit(0); }), 0) << "the process gives up after a second";
#ifndef TRAINYARD_SANITIZED
  const int aborted = StatusOf(pipe, [] { std::abort(); });
  EXPECT_TRUE(WIFSIGNALED(aborted) && WTERMSIG(aborted) == SIGABRT) << aborted;
  EXPECT_THAT(pipe.ReadLines(1), HasSubstr("last line"));
  const int killed = StatusOf(pipe, [] { raise(SIGSEGV); });
  EXPECT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGSEGV) << killed;
  EXPECT_THAT(pipe.ReadLines(1), HasSubstr("last line"));
#endif
}

TEST(LogRateLimiterTest, OneLinePerPeriodIsAllowed_AndTheRestAreCounted) {
  LogRateLimiter limiter(absl::Minutes(1));
  const absl::Time begin = absl::UnixEpoch();

  EXPECT_EQ(limiter.Allow(begin), 0u);
  EXPECT_EQ(limiter.Allow(begin + absl::Seconds(1)), absl::nullopt);
  EXPECT_EQ(limiter.Allow(begin + absl::Seconds(59)), absl::nullopt);
  EXPECT_EQ(limiter.Allow(begin + absl::Seconds(60)), 2u);
  EXPECT_EQ(limiter.Allow(begin + absl::Seconds(200)), 0u);
}

}  // namespace
}  // namespace trainyard
