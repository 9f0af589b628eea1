// Facts on their way to the coordinator: numbered in order, written to disk, sent once they are there, kept until
// acknowledged, sent again on the next stream and by the next life of the daemon.
//
// Its numbers belong to its id, which outlives the daemon: the coordinator keeps (host, id) → highest number it has,
// and passes over what it has already. When the disk refuses, facts go on in memory, under a new id, since numbers that
// were never written could be given twice. What a trainer told stays with the trainer until the coordinator has it, and
// how it ended lies in its rank folder, so nothing is lost then either unless both die.
//
//   Add ──▶ waits ──TakeWrite──▶ being written ──Stored──▶ TakeUnsent ──▶ sent ──Acknowledge──▶ gone
//
// One write is under way at a time, so what comes meanwhile shares the next one's fdatasync. Part of the daemon's core:
// no thread, lock, clock or I/O; the bytes are written by outbox_writer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainyard/v1/agent.pb.h"
#include "worker/agent/outbox_file.h"
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
  // Bytes for the disk.
  struct Write {
    std::string bytes;
    bool replace = false;  // the whole file; otherwise behind what is there
  };
  // What is known of a trainer's own numbers, from this life and those before.
  struct Mark {
    uint64_t last = 0;           // the highest it has told
    uint64_t durable = 0;        // the highest the coordinator has
    bool exit_reported = false;  // its end is among the facts that wait
  };

  // `contents` as the life before left them; `new_id` is taken when there is none.
  Outbox(const OutboxContents& contents, std::string new_id);

  const std::string& id() const { return id_; }
  const std::string& cluster_id() const { return cluster_id_; }

  // The fact names its trainer already.
  void Add(v1::Fact fact, const Origin& origin);

  // Everything up to and including `sequence` is durable. Returns where it came from, in order. A number that was never
  // sent means that the file is an older copy of itself: what waits is then numbered anew, above it.
  std::vector<Origin> Acknowledge(uint64_t sequence);

  // What may be sent and was not yet on this stream, in messages within the limits of the control stream.
  std::vector<v1::FactBatch> TakeUnsent();
  // Whether somebody waits for a fact that may be sent and was not yet: for all but that a trainer was started, has
  // registered, or what its host decided.
  bool IsUrgent() const;
  // Something was not yet sent on this stream, be it that it may not be before it is stored.
  bool has_unsent() const { return unsent_ < entries_.size(); }
  // There is a new stream: all that is not acknowledged is to be sent.
  void Rewind() { unsent_ = 0; }

  // The next write, unless one is under way or nothing needs one. Stored or Failed must follow.
  std::optional<Write> TakeWrite();
  void Stored();
  // The disk has refused: facts go on in memory, under `new_id` if they were not already. Returns whether it was taken.
  bool Failed(std::string new_id);
  // The write that is under way hangs: as Failed, but no other is begun before it has ended. Then all is written anew.
  bool Abandon(std::string new_id);
  // The disk is worth another try.
  void TryDiskAgain() { replace_next_ = true; }

  // Facts are this cluster's from here on. Those of another are dropped, but for ends: the slots of trainers that were
  // named in a hello are free once their end is told. Returns how many were dropped.
  size_t BelongTo(const std::string& cluster_id);

  Mark MarkOf(const TrainerId& id) const;
  // The end of this trainer waits under a number up to `sequence`.
  bool HasExit(const TrainerId& id, uint64_t sequence) const;
  // Forgets what it knows of trainers that are no more, but for the facts that wait.
  template <typename IsThere>
  void ForgetOthers(const IsThere& is_there) {
    std::erase_if(marks_, [&](const auto& mark) { return !is_there(mark.first); });
  }
  bool on_disk() const { return on_disk_; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }
  bool full() const;
  // Facts that may not be sent yet: what is said of them must wait too.
  bool has_unstored() const { return on_disk_ && stored_ < last_sequence_; }

 private:
  struct Entry {
    v1::Fact fact;
    Origin origin;
    size_t size = 0;
  };

  void Push(Entry entry);
  void NumberAbove(uint64_t sequence);
  std::string WholeFile() const;

  std::string id_;
  std::string cluster_id_;
  std::deque<Entry> entries_;
  size_t bytes_ = 0;   // of the entries
  size_t unsent_ = 0;  // index of the first entry not sent on this stream
  uint64_t last_sequence_ = 0;
  uint64_t last_sent_ = 0;  // the highest a coordinator may know under this id
  uint64_t acked_ = 0;
  std::map<TrainerId, uint64_t> marks_;  // durable, of trainers whose end is not

  bool on_disk_ = true;
  bool replace_next_ = true;  // a new life begins with a file of its own: no torn tail, nothing acknowledged
  uint64_t stored_ = 0;
  uint64_t written_ = 0;  // in a write, finished or under way
  uint64_t acked_written_ = 0;
  bool writing_ = false;
  size_t file_bytes_ = 0;  // of facts in the file
};

}  // namespace trainyard::agent
