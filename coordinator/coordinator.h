// The complete coordinator, as main() creates and runs it. Owns its parts in the order of declaration: later members
// use earlier ones and are destroyed first.
//
//   ASSIGN_OR_RETURN(auto coordinator, Coordinator::Start(options, clock, failed));
//   ... until a signal ...
//   coordinator->Stop();
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/files.h"
#include "coordinator/core/core_loop.h"
#include "coordinator/core/event_queue.h"
#include "coordinator/http/http_front.h"
#include "coordinator/http/json_gateway.h"
#include "coordinator/http/metrics.h"
#include "coordinator/http/page_feed.h"
#include "coordinator/http/status_page.h"
#include "coordinator/http/webhook_sender.h"
#include "coordinator/options.h"
#include "coordinator/rpc/server.h"
#include "coordinator/store/store.h"

namespace trainyard {

class Coordinator final : private EffectSink {
 public:
  // The coordinator serves when this returns. `failed` is called on another thread when the store is lost: it belongs
  // to another process, has disappeared or is damaged. Possible errors:
  //   InvalidArgument      an address is invalid, or the state folder is that of a worker daemon.
  //   Unavailable          another coordinator uses the state folder, or the port is in use.
  //   FailedPrecondition, DataLoss  the store is not a coordinator's, is of a newer version, or is damaged.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const CoordinatorOptions& options, Clock& clock,
                                                            std::function<void(absl::Status)> failed);
  ~Coordinator() override;

  const std::string& address() const { return server_->address(); }
  std::string metrics_address() const { return endpoint_ == nullptr ? "" : endpoint_->address(); }

  // The number of unfinished jobs after the last round of the loop. Thread-safe.
  size_t jobs_unfinished() const { return jobs_unfinished_; }

  // Handles the queued events, ends all streams with UNAVAILABLE and backs up the store. Jobs continue.
  void Stop();

 private:
  Coordinator() = default;

  absl::Status OpenStore(const CoordinatorOptions& options);
  absl::Status StartLoop(const CoordinatorOptions& options, Clock& clock, std::function<void(absl::Status)> failed);
  absl::Status Serve(const CoordinatorOptions& options);
  void MakeFront(const CoordinatorOptions& options);
  absl::Status ServeHttp(const CoordinatorOptions& options);
  void Release(Effect effect) override;
  absl::Duration Flush() override { return server_->Flush(); }

  std::string store_path_;
  std::atomic<size_t> jobs_unfinished_{1};  // 1 until the first round has set it
  // Whether Stop writes no backup: it was written, the store is lost, or the loop has not started. Until the loop
  // starts, the store may have records that cannot be read, and must not replace the existing backup.
  std::atomic<bool> backed_up_{true};
  std::atomic<bool> serves_{false};  // the API is served; until then, the HTTP port cannot check its callers
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<CoordinatorMetrics> metrics_ = std::make_shared<CoordinatorMetrics>();
  std::unique_ptr<EventQueue> queue_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<WebhookSender> webhooks_;
  std::unique_ptr<CoreLoop> loop_;
  JsonGateway gateway_;
  std::unique_ptr<PageFeed> feed_;
  std::unique_ptr<StatusPage> page_;
  std::unique_ptr<HttpFront> front_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

}  // namespace trainyard
