#include "worker/saving/leavable_thread.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLeaveWait = absl::Seconds(2);

}  // namespace

struct LeavableThread::End {
  absl::Mutex mu;
  SteadyCondVar changed;
  bool ended ABSL_GUARDED_BY(mu) = false;
};

LeavableThread::LeavableThread(std::function<void()> body)
    : end_(std::make_shared<End>()), thread_([end = end_, body = std::move(body)]() mutable {
        body();
        body = nullptr;  // destroys what the body owns before the destructor returns
        absl::MutexLock lock(&end->mu);
        end->ended = true;
        end->changed.SignalAll();
      }) {}

LeavableThread::~LeavableThread() {
  bool ended;
  {
    absl::MutexLock lock(&end_->mu);
    ended = end_->changed.AwaitFor(&end_->mu, kLeaveWait,
                                   [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(end_->mu) { return end_->ended; });
  }
  ended ? thread_.join() : thread_.detach();
}

}  // namespace trainyard
