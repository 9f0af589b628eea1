// Facts on their way to the coordinator: numbered in order, sent as soon as there is a stream, kept until acknowledged,
// sent again on the next stream. In memory: what a trainer said is also kept by the trainer until it is acknowledged
// end to end, and how a trainer ended lies in its rank folder, so a daemon that dies loses neither.
//
// Part of the daemon's core: no thread, lock or clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "trainyard/v1/agent.pb.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

class Outbox {
 public:
  // Who is to be told once the fact is durable.
  struct Origin {
    TrainerId trainer;
    uint64_t trainer_sequence = 0;  // 0: the fact is the daemon's own
    bool is_exit = false;
  };

  void Add(v1::Fact fact, const Origin& origin);

  // Everything up to and including `sequence` is durable. Returns where it came from, in order.
  std::vector<Origin> Acknowledge(uint64_t sequence);

  // What was not yet sent on this stream, in messages within the limits of the control stream.
  std::vector<v1::FactBatch> TakeUnsent();

  // There is a new stream: all that is not acknowledged is to be sent.
  void Rewind() { unsent_ = 0; }

  bool empty() const { return entries_.empty(); }
  bool full() const;

 private:
  struct Entry {
    v1::Fact fact;
    Origin origin;
  };

  std::deque<Entry> entries_;
  size_t unsent_ = 0;  // index of the first entry not sent on this stream
  uint64_t last_sequence_ = 0;
};

}  // namespace trainyard::agent
