// Rendezvous values on their way to the daemons that watch a generation: N ranks put a value each, N hosts want all of
// them. A write costs about 10 us whatever is in it, so N x N of them must not happen: values gather until none has
// come for a moment, are encoded once, and every watcher gets the same bytes.
//
//   watchers        2      64     1,024   4,096
//   moment      10 us   320 us     5 ms   20 ms     at most twenty times as long, while values go on coming
//
// On the loop's thread.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/effect.h"
#include "coordinator/rpc/registry.h"

namespace trainyard {

class ValuesStream;

class ValueFanOut {
 public:
  // A piece of encoded values has about this many bytes, or one value more.
  static constexpr size_t kPieceBytes = 1 << 20;

  // Does not own `watches`; it must outlive this object.
  explicit ValueFanOut(const Registry<WatchId, ValuesStream>& watches) : watches_(watches) {}

  void Add(SendValues send);
  // Sends what has gathered for long enough. Returns in what time that is to be asked again; infinite: nothing waits.
  absl::Duration SendDue();
  void SendAll();

 private:
  struct Log {
    std::shared_ptr<const ValueLog> log;
    std::vector<grpc::Slice> pieces;
    size_t encoded = 0;  // values that the pieces hold
    WatchList watches;   // everybody who watched at the last put; null: nothing was put
    std::set<WatchId> newcomers;
    absl::Time first, last;  // since it was sent

    bool waits() const { return watches != nullptr || !newcomers.empty(); }
    absl::Time due() const;
  };

  void Send(Log& log);

  const Registry<WatchId, ValuesStream>& watches_;
  std::map<const ValueLog*, Log> logs_;  // of generations that form
};

}  // namespace trainyard
