#include "coordinator/rpc/log_bridge.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"

namespace trainyard {

void LogBridge::Open(const std::vector<std::string>& request_ids, const std::shared_ptr<LogSink>& sink) {
  absl::MutexLock lock(&mu_);
  for (const std::string& id : request_ids) sinks_[id] = sink;
}

void LogBridge::Close(const std::shared_ptr<LogSink>& sink) {
  absl::MutexLock lock(&mu_);
  absl::erase_if(sinks_, [&](const auto& entry) { return entry.second == sink; });
}

absl::Status LogBridge::Push(const std::string& request_id, v1::LogChunk chunk, std::function<void()> resume,
                             bool& keep_reading) {
  std::shared_ptr<LogSink> sink;
  {
    absl::MutexLock lock(&mu_);
    auto it = sinks_.find(request_id);
    if (it == sinks_.end()) {
      return AddReason(absl::NotFoundError(absl::StrCat("log request ", request_id, " has ended")),
                       reasons::kLogReaderGone);
    }
    sink = it->second;
  }
  keep_reading = sink->Write(std::move(chunk), std::move(resume));
  return absl::OkStatus();
}

}  // namespace trainyard
