// Sends new values of a generation's store to its hosts: values that were written within a short time are encoded once,
// and all hosts' streams write the same bytes. The length of that time is proportional to the cost of sending.
//
// Not thread-safe: used only on the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "coordinator/core/effect.h"
#include "coordinator/rpc/attach_stream.h"
#include "coordinator/rpc/registry.h"

namespace trainyard {

class ValueFanOut {
 public:
  // A piece is at most this size plus the size of one value.
  static constexpr size_t kPieceBytes = 1 << 20;

  // Does not own `streams`, which must outlive this object.
  explicit ValueFanOut(const Registry<SessionId, AttachStream>& streams) : streams_(streams) {}

  void Add(SendValues send);
  // Sends values that have waited long enough. Returns the time until the next call; infinite if nothing waits.
  absl::Duration SendDue();

 private:
  struct Log {
    std::shared_ptr<const ValueLog> log;
    std::vector<ValuePiece> pieces;
    size_t encoded = 0;             // number of values in the pieces
    SessionList sessions;           // all sessions attached at the last put; null: no put since values were sent
    std::set<SessionId> newcomers;  // sessions that attached later, or the group's only session
    absl::flat_hash_map<SessionId, size_t> pieces_sent;  // number of pieces, by session
    absl::Time first, last;                              // times of the first and last put since values were sent

    bool has_unsent() const { return sessions != nullptr || !newcomers.empty(); }
    absl::Time due() const;
  };

  void Send(Log& log);

  const Registry<SessionId, AttachStream>& streams_;
  std::map<const ValueLog*, Log> logs_;  // of forming generations
};

}  // namespace trainyard
