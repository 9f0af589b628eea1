#include "worker/agent/outbox.h"

#include <algorithm>
#include <utility>

#include "common/limits.h"

namespace trainyard::agent {
namespace {

// A smaller file is not compacted.
constexpr size_t kCompactBytes = 64 << 10;

std::string Encode(const v1::Fact& fact, uint64_t trainer_sequence) {
  v1::OutboxRecord record;
  *record.mutable_fact()->mutable_fact() = fact;
  record.mutable_fact()->set_trainer_sequence(trainer_sequence);
  return EncodeOutboxRecord(record);
}

}  // namespace

Outbox::Outbox(const OutboxContents& contents, std::string new_id)
    : id_(contents.header.outbox_id().empty() ? std::move(new_id) : contents.header.outbox_id()),
      cluster_id_(contents.header.cluster_id()),
      last_sequence_(contents.header.last_sequence()),
      acked_(contents.acked_fact) {
  for (const v1::TrainerMark& mark : contents.header.marks()) marks_[FromProto(mark.key())] = mark.trainer_sequence();
  for (const v1::OutboxFact& kept : contents.facts) {
    const v1::Fact& fact = kept.fact();
    last_sequence_ = std::max(last_sequence_, fact.sequence());
    Push({.fact = fact,
          .origin = {.trainer = FromProto(fact.key()),
                     .trainer_sequence = kept.trainer_sequence(),
                     .is_exit = fact.has_exited()}});
  }
  last_sent_ = stored_ = written_ = last_sequence_;
  // Removes the facts that the coordinator had acknowledged. Trainers that were not notified of the acknowledgement are
  // notified when they reconnect, according to marks_.
  Acknowledge(acked_);
}

void Outbox::Push(Entry entry) {
  entry.size = entry.fact.ByteSizeLong();
  bytes_ += entry.size;
  entries_.push_back(std::move(entry));
}

void Outbox::Add(v1::Fact fact, const Origin& origin) {
  fact.set_sequence(++last_sequence_);
  Push({.fact = std::move(fact), .origin = origin});
}

bool Outbox::HasExit(const TrainerId& id, uint64_t sequence) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.fact.sequence() <= sequence && entry.origin.is_exit && entry.origin.trainer == id;
  });
}

bool Outbox::full() const { return entries_.size() >= limits::kFactsUnacknowledged || bytes_ >= limits::kOutboxBytes; }

void Outbox::RenumberAbove(uint64_t sequence) {
  last_sequence_ = last_sent_ = sequence;
  for (Entry& entry : entries_) entry.fact.set_sequence(++last_sequence_);
  stored_ = written_ = sequence;
  replace_next_ = true;
}

std::vector<Outbox::Origin> Outbox::Acknowledge(uint64_t sequence) {
  std::vector<Origin> origins;
  const uint64_t known = std::min(sequence, last_sent_);
  while (!entries_.empty() && entries_.front().fact.sequence() <= known) {
    const Origin& origin = entries_.front().origin;
    if (origin.is_exit) {
      marks_.erase(origin.trainer);
    } else if (origin.trainer_sequence > 0) {
      uint64_t& mark = marks_[origin.trainer];
      mark = std::max(mark, origin.trainer_sequence);
    }
    origins.push_back(origin);
    bytes_ -= entries_.front().size;
    entries_.pop_front();
    if (unsent_ > 0) --unsent_;
  }
  acked_ = std::max(acked_, sequence);
  if (sequence > last_sent_) RenumberAbove(sequence);
  return origins;
}

std::vector<v1::FactBatch> Outbox::TakeUnsent() {
  std::vector<v1::FactBatch> batches;
  size_t batch_bytes = 0;
  for (; unsent_ < entries_.size(); ++unsent_) {
    const Entry& entry = entries_[unsent_];
    if (on_disk_ && entry.fact.sequence() > stored_) break;
    bool fits = !batches.empty() && batches.back().facts_size() < static_cast<int>(limits::kFactsPerMessage) &&
                batch_bytes + entry.size <= limits::kControlMessageBytes / 2;
    if (!fits) {
      batches.emplace_back();
      batch_bytes = 0;
    }
    *batches.back().add_facts() = entry.fact;
    batch_bytes += entry.size;
    last_sent_ = std::max(last_sent_, entry.fact.sequence());
  }
  return batches;
}

bool Outbox::IsUrgent() const {
  for (size_t i = unsent_; i < entries_.size(); ++i) {
    const v1::Fact& fact = entries_[i].fact;
    if (on_disk_ && fact.sequence() > stored_) return false;
    if (!fact.has_started() && !fact.has_registered() && !fact.has_decided()) return true;
  }
  return false;
}

std::string Outbox::WholeFile() const {
  v1::OutboxRecord record;
  v1::OutboxHeader& header = *record.mutable_header();
  header.set_version(kOutboxVersion);
  header.set_outbox_id(id_);
  header.set_cluster_id(cluster_id_);
  header.set_last_sequence(last_sequence_);
  for (const auto& [id, sequence] : marks_) {
    v1::TrainerMark& mark = *header.add_marks();
    *mark.mutable_key() = ToProto(id);
    mark.set_trainer_sequence(sequence);
  }
  std::string bytes = EncodeOutboxRecord(record);
  for (const Entry& entry : entries_) bytes += Encode(entry.fact, entry.origin.trainer_sequence);
  return bytes;
}

std::optional<Outbox::Write> Outbox::TakeWrite() {
  if (writing_) return std::nullopt;
  bool compact = on_disk_ && file_bytes_ >= kCompactBytes && bytes_ < file_bytes_ / 2;
  Write write;
  if (replace_next_ || compact) {
    write = {.bytes = WholeFile(), .replace = true};
    file_bytes_ = bytes_;
  } else if (on_disk_ && written_ < last_sequence_) {
    if (acked_ > written_ack_) {
      v1::OutboxRecord record;
      record.set_acked_fact(acked_);
      write.bytes = EncodeOutboxRecord(record);
    }
    auto first = std::partition_point(entries_.begin(), entries_.end(),
                                      [this](const Entry& entry) { return entry.fact.sequence() <= written_; });
    for (; first != entries_.end(); ++first) {
      write.bytes += Encode(first->fact, first->origin.trainer_sequence);
      file_bytes_ += first->size;
    }
  } else {
    return std::nullopt;
  }
  replace_next_ = false;
  writing_ = true;
  written_ = last_sequence_;
  written_ack_ = acked_;
  return write;
}

void Outbox::Stored() {
  writing_ = false;
  // A replacement was requested while the write was under way (after a change of the id, the numbers or the cluster):
  // what this write stored does not count.
  if (replace_next_) return;
  on_disk_ = true;
  stored_ = written_;
}

bool Outbox::Failed(std::string new_id) {
  writing_ = false;
  if (!on_disk_) return false;
  on_disk_ = false;
  id_ = std::move(new_id);
  return true;
}

bool Outbox::Abandon(std::string new_id) {
  replace_next_ = true;
  if (!on_disk_) return false;
  on_disk_ = false;
  id_ = std::move(new_id);
  return true;
}

size_t Outbox::SetCluster(const std::string& cluster_id) {
  bool is_another_cluster = !cluster_id_.empty() && cluster_id_ != cluster_id;
  if (cluster_id_ != cluster_id) replace_next_ = true;
  cluster_id_ = cluster_id;
  if (!is_another_cluster) return 0;
  size_t before = entries_.size();
  std::deque<Entry> kept;
  for (Entry& entry : entries_) {
    if (entry.origin.is_exit) kept.push_back(std::move(entry));
  }
  entries_ = std::move(kept);
  bytes_ = 0;
  for (const Entry& entry : entries_) bytes_ += entry.size;
  unsent_ = 0;
  marks_.clear();
  return before - entries_.size();
}

Outbox::KnownNumbers Outbox::KnownNumbersOf(const TrainerId& id) const {
  KnownNumbers numbers;
  if (auto at = marks_.find(id); at != marks_.end()) numbers.last = numbers.durable = at->second;
  for (const Entry& entry : entries_) {
    if (entry.origin.trainer != id) continue;
    numbers.last = std::max(numbers.last, entry.origin.trainer_sequence);
    numbers.exit_reported = numbers.exit_reported || entry.origin.is_exit;
  }
  return numbers;
}

}  // namespace trainyard::agent
