#include "common/logging.h"

#include <signal.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/stat.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/escape.h"
#include "common/log_writer.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// How long FlushLogging waits, and how long a process that is killed by a fatal signal waits.
const absl::Duration kFlushWait = absl::Seconds(1);
constexpr int kFatalFlushMs = 500;

// Never destroyed: its thread may be blocked in a write when the process ends, and other threads may log until then.
std::atomic<LogWriter*> writer{nullptr};

// %* in a pattern: the message as a JSON string with quotes, so that any text gives one valid line.
class JsonText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string text(message.payload.data(), message.payload.size());
    std::string quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonText>(); }
};

// %* in a pattern: the escaped message on one line.
class EscapedText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    std::string escaped = EscapeText({message.payload.data(), message.payload.size()});
    out.append(escaped.data(), escaped.data() + escaped.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<EscapedText>(); }
};

// %& in a pattern: the priority by which the journal of systemd shows and filters lines.
class Priority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const absl::string_view text = message.level >= spdlog::level::critical ? "<2>"
                                   : message.level == spdlog::level::err    ? "<3>"
                                   : message.level == spdlog::level::warn   ? "<4>"
                                   : message.level == spdlog::level::info   ? "<6>"
                                                                            : "<7>";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Priority>(); }
};

// Whether the descriptor is the stream to the journal that systemd has opened for this program.
bool IsJournal(int fd) {
  const char* stream = getenv("JOURNAL_STREAM");
  struct stat info;
  return stream != nullptr && fstat(fd, &info) == 0 && absl::StrCat(info.st_dev, ":", info.st_ino) == stream;
}

std::unique_ptr<spdlog::formatter> MakeFormatter(const LoggingOptions& options) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  const bool journal = options.file.path.empty() && IsJournal(options.fd);
  const std::string begin = journal ? "%&" : "";
  formatter->add_flag<Priority>('&');
  if (options.json) {
    formatter->add_flag<JsonText>('*').set_pattern(
        begin + R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","program":"%n","pid":%P,"message":%*})");
  } else {
    formatter->add_flag<EscapedText>('*').set_pattern(begin + (journal ? "%*" : "%Y-%m-%d %H:%M:%S.%e %L %n[%P] %*"));
  }
  return formatter;
}

std::string Format(spdlog::formatter& formatter, const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter.format(message, line);
  return std::string(line.data(), line.size());
}

class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(LogWriter& writer) : writer_(writer) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override { writer_.Push(Format(*formatter_, message)); }
  void flush_() override {}  // the writer's thread writes each line as soon as it can

 private:
  LogWriter& writer_;
};

// The file of the newest writer; null: standard error. Never destroyed, like the writer.
std::atomic<RotatedLog*> open_file{nullptr};

LogWriter* NewWriter(const LoggingOptions& options, RotatedLog* file) {
  std::shared_ptr<spdlog::formatter> formatter = MakeFormatter(options);
  const char* const place =
      file == nullptr ? "standard error did not accept them in time" : "they could not be written to the file";
  LogWriter::Options writer_options{
      .fd = options.fd, .format_dropped = [formatter, place, program = options.program](uint64_t lines) {
        const std::string text = absl::StrCat(lines, lines == 1 ? " line of this log is" : " lines of this log are",
                                              " missing here: ", place);
        return Format(*formatter, spdlog::details::log_msg(program, spdlog::level::warn, text));
      }};
  if (file != nullptr) writer_options.write = [file](const std::string& line) { return file->Write(line); };
  return new LogWriter(std::move(writer_options));
}

// Calls only functions that are safe in a signal handler. The writer's thread continues during the wait.
void WaitForWriter(int signal) {
  const LogWriter* to = writer;
  for (int waited_ms = 0; to != nullptr && !to->idle() && waited_ms < kFatalFlushMs; waited_ms += 10) {
    const timespec pause = {.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&pause, nullptr);
  }
  raise(signal);  // SA_RESETHAND has restored the default action
}

[[noreturn]] void LogUncaught() {
  std::string what = "of unknown type";
  if (std::exception_ptr current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
  }
  spdlog::critical("uncaught exception: {}", what);
  std::abort();
}

void FlushAtEnd() {
  std::atexit([] { FlushLogging(); });
  std::set_terminate(LogUncaught);
#ifndef TRAINYARD_SANITIZED
  struct sigaction action = {};
  action.sa_handler = WaitForWriter;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int fatal : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(fatal, &action, nullptr);
#endif
}

void Init(const LoggingOptions& options, RotatedLog* file) {
  if (writer == nullptr) FlushAtEnd();
  open_file = file;
  writer = NewWriter(options, file);
  auto logger = std::make_shared<spdlog::logger>(options.program, std::make_shared<QueueSink>(*writer));
  logger->set_formatter(MakeFormatter(options));
  logger->set_level(spdlog::level::from_str(options.level));
  spdlog::set_default_logger(logger);
}

}  // namespace

void InitLogging(const LoggingOptions& options) { Init(options, nullptr); }

absl::Status OpenLog(const LoggingOptions& options) {
  if (options.file.path.empty()) {
    Init(options, nullptr);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<RotatedLog> file, RotatedLog::Open(options.file));
  Init(options, file.release());
  return absl::OkStatus();
}

void ReloadLog(const absl::StatusOr<std::string>& level) {
  RotatedLog* file = open_file;
  if (file != nullptr) file->RequestReopen();
  if (!level.ok()) {
    return spdlog::warn("SIGHUP: the level of the log is unchanged, because the configuration cannot be read: {}",
                        std::string(level.status().message()));
  }
  // Logged in any case, so that an operator sees that the signal has arrived.
  spdlog::set_level(spdlog::level::info);
  spdlog::info("SIGHUP: the level of the log is {}{}", *level, file != nullptr ? "; its file was opened again" : "");
  spdlog::set_level(spdlog::level::from_str(*level));
}

bool FlushLogging() {
  LogWriter* to = writer;
  return to == nullptr || to->Flush(kFlushWait);
}

uint64_t LogLinesDropped() {
  const LogWriter* to = writer;
  return to == nullptr ? 0 : to->dropped();
}

}  // namespace trainyard
