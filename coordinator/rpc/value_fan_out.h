// Tells the hosts of a generation what is new in its store: values that were put within a moment of each other are
// encoded once, and all hosts' streams write the same bytes. A moment is in proportion to what telling costs.
//
// On the loop's thread only.
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
  // A piece has no more than this and one value.
  static constexpr size_t kPieceBytes = 1 << 20;

  // Does not own `streams`; it must outlive this object.
  explicit ValueFanOut(const Registry<SessionId, AttachStream>& streams) : streams_(streams) {}

  void Add(SendValues send);
  // Sends what has gathered for long enough. Returns in what time that is to be asked again; infinite: nothing waits.
  absl::Duration SendDue();

 private:
  struct Log {
    std::shared_ptr<const ValueLog> log;
    std::vector<ValuePiece> pieces;
    size_t encoded = 0;    // values that the pieces hold
    SessionList sessions;  // everybody who was attached at the last put; null: nothing was put
    std::set<SessionId> newcomers;
    absl::flat_hash_map<SessionId, size_t> had;  // pieces that a session was sent
    absl::Time first, last;                      // since it was sent

    bool waits() const { return sessions != nullptr || !newcomers.empty(); }
    absl::Time due() const;
  };

  void Send(Log& log);

  const Registry<SessionId, AttachStream>& streams_;
  std::map<const ValueLog*, Log> logs_;  // of generations that form
};

}  // namespace trainyard
