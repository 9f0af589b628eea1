// Measures for how long the computations of a GPU wait for operations of other ranks. Waiting for such an operation
// blocks the stream on which the rank computes, and the host continues, so the host's clock does not show the wait. An
// event before the wait and one after it measure it without blocking the host.
//
// On a CPU this class measures nothing, because there the host waits itself (timed_wait.h). Not thread-safe: the loop's
// thread uses it, and so does autograd's thread while the loop's thread waits for backward.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <vector>

namespace trainyard {

class StreamWaits {
 public:
  explicit StreamWaits(c10::Device device) : device_(device) {}

  // Begin is called before the first computation of a step is queued, and End after the last one was queued. If End is
  // called several times, the last call counts. Waits after Seconds and before the next Begin are not measured.
  void Begin();
  void End();
  // The seconds of the waits from Begin to End; 0 on a CPU. Call it when the device has computed what was queued before
  // the last End. A wait whose events have not ended then is left out.
  double Seconds();

  // Called before and after a wait is queued on the current stream.
  void BeforeWait();
  void AfterWait();

 private:
  struct Wait {
    c10::Event before, after;
  };

  const c10::Device device_;
  std::vector<Wait> waits_;  // kept for the next step
  size_t num_waits_ = 0;     // of this step
  size_t num_counted_ = 0;   // of them, those before the last End
  bool measures_ = false;
};

}  // namespace trainyard
