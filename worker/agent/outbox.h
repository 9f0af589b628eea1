// Stores facts until the coordinator has them: they are numbered in order, written to disk, sent once they are on disk,
// kept until acknowledged, and sent again on the next stream and by the next incarnation of the daemon.
//
// The numbers belong to the outbox's id, which outlives the daemon: the coordinator stores the highest number it has
// for each (host, id), and skips what it has already. If the disk refuses a write, facts continue in memory under a new
// id: under the old id, the next incarnation would give the unwritten numbers to other facts. Even then, facts are lost
// only if the daemon and the trainer are killed: a trainer keeps its own facts until the coordinator has them, and its
// exit is in its rank folder.
//
//   Add ──▶ waits ──TakeWrite──▶ being written ──Stored──▶ TakeUnsent ──▶ sent ──Acknowledge──▶ removed
//
// At most one write is under way, so facts that arrive meanwhile share the next fdatasync. Part of the daemon's core:
// no thread, lock, clock or I/O; outbox_writer.h writes the bytes.
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
  // Where a fact came from: the trainer is notified once the fact is durable.
  struct Origin {
    TrainerId trainer;
    uint64_t trainer_sequence = 0;  // 0: the fact is the daemon's own
    bool is_exit = false;
  };
  // Bytes for the disk.
  struct Write {
    std::string bytes;
    bool replace = false;  // replace the whole file; otherwise append
  };
  // What is known about the numbers that a trainer gave its facts, from this incarnation and earlier ones.
  struct KnownNumbers {
    uint64_t last = 0;           // the highest that the trainer has reported
    uint64_t durable = 0;        // the highest that the coordinator has
    bool exit_reported = false;  // its exit is among the waiting facts
  };

  // `contents` as the earlier incarnation left them; `new_id` is used if there is no outbox yet.
  Outbox(const OutboxContents& contents, std::string new_id);

  const std::string& id() const { return id_; }
  const std::string& cluster_id() const { return cluster_id_; }

  // REQUIRES: the fact contains its trainer's key.
  void Add(v1::Fact fact, const Origin& origin);

  // All facts up to and including `sequence` are durable. Returns their origins, in order. A `sequence` that was never
  // sent means that the outbox's file was replaced by an older copy: the waiting facts then get higher numbers.
  std::vector<Origin> Acknowledge(uint64_t sequence);

  // Returns the facts that may be sent and were not sent yet on this stream, in messages within the limits of the
  // control stream.
  std::vector<v1::FactBatch> TakeUnsent();
  // Returns whether an unsent fact that may be sent is urgent. All facts are urgent, except `started`,
  // `registered` and `decided`.
  bool IsUrgent() const;
  // Whether there are facts that were not sent yet on this stream, including those that must be stored first.
  bool has_unsent() const { return unsent_ < entries_.size(); }
  // There is a new stream: everything without acknowledgement must be sent.
  void Rewind() { unsent_ = 0; }

  // Returns the next write; none if one is under way or nothing has to be written. Call Stored or Failed after it.
  std::optional<Write> TakeWrite();
  void Stored();
  // The disk refused a write: facts continue in memory, under `new_id` unless they are in memory already. Returns
  // whether `new_id` is used.
  bool Failed(std::string new_id);
  // The write under way hangs: does the same as Failed, but the next write begins only after that write has ended, and
  // writes everything again.
  bool Abandon(std::string new_id);
  // Allows another write to the disk.
  void RetryDisk() { replace_next_ = true; }

  // From now on facts belong to this cluster. Those of another cluster are dropped, except exits: the daemon's hello
  // has named these trainers to the coordinator, which considers their slots used until it receives their exits.
  // Returns how many facts were dropped.
  size_t SetCluster(const std::string& cluster_id);

  KnownNumbers KnownNumbersOf(const TrainerId& id) const;
  // Whether the exit of this trainer waits under a number up to `sequence`.
  bool HasExit(const TrainerId& id, uint64_t sequence) const;
  // Forgets trainers that do not exist any more, except for their waiting facts.
  template <typename Exists>
  void ForgetOtherTrainers(const Exists& exists) {
    std::erase_if(marks_, [&](const auto& mark) { return !exists(mark.first); });
  }
  bool on_disk() const { return on_disk_; }
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }
  bool full() const;
  // Whether there are facts that may not be sent yet; messages that depend on them must wait too.
  bool has_unstored() const { return on_disk_ && stored_ < last_sequence_; }

 private:
  struct Entry {
    v1::Fact fact;
    Origin origin;
    size_t size = 0;
  };

  void Push(Entry entry);
  void RenumberAbove(uint64_t sequence);
  std::string WholeFile() const;

  std::string id_;
  std::string cluster_id_;
  std::deque<Entry> entries_;
  size_t bytes_ = 0;   // of the entries
  size_t unsent_ = 0;  // index of the first entry not sent on this stream
  uint64_t last_sequence_ = 0;
  uint64_t last_sent_ = 0;  // the highest number that a coordinator may know for this id
  uint64_t acked_ = 0;
  // The highest durable number of each trainer whose exit is not durable.
  std::map<TrainerId, uint64_t> marks_;

  bool on_disk_ = true;
  // The next write replaces the file. A new incarnation begins with a new file, which has neither a torn end nor
  // acknowledged facts.
  bool replace_next_ = true;
  uint64_t stored_ = 0;       // the highest number on disk
  uint64_t written_ = 0;      // the highest number in a write that has finished or is under way
  uint64_t written_ack_ = 0;  // the highest acknowledged number in such a write
  bool writing_ = false;
  size_t file_bytes_ = 0;  // of facts in the file
};

}  // namespace trainyard::agent
