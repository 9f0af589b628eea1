#include "common/rpc_logging.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log_rate_limiter.h"
#include "common/logging.h"

namespace trainyard {
namespace {

spdlog::level::level_enum LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return spdlog::level::debug;
    case GPR_LOG_SEVERITY_INFO:
      return spdlog::level::info;
    case GPR_LOG_SEVERITY_ERROR:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

spdlog::level::level_enum LevelOf(google::protobuf::LogLevel level) {
  switch (level) {
    case google::protobuf::LOGLEVEL_INFO:
      return spdlog::level::info;
    case google::protobuf::LOGLEVEL_WARNING:
      return spdlog::level::warn;
    case google::protobuf::LOGLEVEL_ERROR:
    case google::protobuf::LOGLEVEL_FATAL:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// Removes the folders of the library's build.
std::string FileName(absl::string_view path) { return std::string(path.substr(path.rfind('/') + 1)); }

}  // namespace

void RouteRpcLogs() {
  gpr_set_log_function([](gpr_log_func_args* line) {
    spdlog::log(LevelOf(line->severity), "gRPC {}:{}: {}", FileName(line->file), line->line, line->message);
  });
  google::protobuf::SetLogHandler(
      [](google::protobuf::LogLevel level, const char* file, int number, const std::string& message) {
        // Requests are parsed before their sender is authenticated, so any sender can cause these lines.
        static auto* const limiter = new LogRateLimiter(absl::Minutes(1));
        const absl::optional<uint64_t> suppressed = limiter->Allow(Clock::GetSteadyClock().TimeNow());
        if (!suppressed.has_value()) return;
        const std::string suffix =
            *suppressed == 0 ? "" : absl::StrCat(" (", *suppressed, " similar lines were suppressed before)");
        spdlog::log(LevelOf(level), "protobuf {}:{}: {}{}", FileName(file), number, message, suffix);
      });
}

}  // namespace trainyard
