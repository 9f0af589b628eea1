#include "worker/agent/outbox.h"

#include <utility>

#include "common/limits.h"

namespace trainyard::agent {

void Outbox::Add(v1::Fact fact, const Origin& origin) {
  fact.set_sequence(++last_sequence_);
  entries_.push_back({std::move(fact), origin});
}

bool Outbox::full() const { return entries_.size() >= limits::kFactsUnacknowledged; }

std::vector<Outbox::Origin> Outbox::Acknowledge(uint64_t sequence) {
  std::vector<Origin> origins;
  while (!entries_.empty() && entries_.front().fact.sequence() <= sequence) {
    origins.push_back(entries_.front().origin);
    entries_.pop_front();
    if (unsent_ > 0) --unsent_;
  }
  return origins;
}

std::vector<v1::FactBatch> Outbox::TakeUnsent() {
  std::vector<v1::FactBatch> batches;
  size_t batch_bytes = 0;
  for (; unsent_ < entries_.size(); ++unsent_) {
    const v1::Fact& fact = entries_[unsent_].fact;
    size_t fact_bytes = fact.ByteSizeLong();
    bool fits = !batches.empty() && batches.back().facts_size() < static_cast<int>(limits::kFactsPerMessage) &&
                batch_bytes + fact_bytes <= limits::kControlMessageBytes / 2;
    if (!fits) {
      batches.emplace_back();
      batch_bytes = 0;
    }
    *batches.back().add_facts() = fact;
    batch_bytes += fact_bytes;
  }
  return batches;
}

}  // namespace trainyard::agent
