// The losses of the micro-batches that a rank computes in one step. On a GPU they are copied to the host while the host
// continues, so that it queues the whole step before it waits. One thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace trainyard {

class StepLosses {
 public:
  explicit StepLosses(at::Device device);

  // Begin is called before the first micro-batch is queued, and End after the last one was queued. If End is called
  // several times, the last call counts. Add returns the loss if it is on a CPU.
  void Begin();
  std::optional<double> Add(int64_t micro_batch, const at::Tensor& loss);
  void End();

  // Waits until the device has computed what was queued before the last End. Returns each micro-batch with its loss, in
  // the order in which they were added. Throws c10::Error if the device has failed.
  std::vector<std::pair<int64_t, double>> Await();
  // On a GPU: the seconds that it needed from Begin to End, without earlier work. Unset on a CPU, and before Await.
  std::optional<double> device_seconds() const { return device_seconds_; }

 private:
  struct Events {
    c10::Event begin, end;
  };

  const at::Device device_;
  std::optional<Events> events_;  // unset on a CPU
  std::vector<std::pair<int64_t, double>> losses_;
  std::vector<std::pair<int64_t, at::Tensor>> copies_;  // those that the device may not have written yet
  std::optional<double> device_seconds_;
};

}  // namespace trainyard
