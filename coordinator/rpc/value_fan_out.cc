#include "coordinator/rpc/value_fan_out.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/clock.h"
#include "coordinator/rpc/values_stream.h"

namespace trainyard {
namespace {

// Half of what a write costs: a moment is half of what sending takes.
constexpr absl::Duration kMomentPerWatcher = absl::Microseconds(5);
constexpr int kMomentsMost = 20;

absl::Time Now() { return Clock::GetSteadyClock().TimeNow(); }

// Values as they go over the wire: whole fields of a StoreValues, so that pieces laid side by side are a message too.
void Encode(const std::vector<ValuePtr>& values, size_t begin, std::vector<grpc::Slice>& pieces) {
  namespace pb = google::protobuf;
  constexpr uint32_t kTag = pb::internal::WireFormatLite::MakeTag(
      v1::StoreValues::kValuesFieldNumber, pb::internal::WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::string piece;
  for (size_t i = begin; i < values.size(); ++i) {
    {
      pb::io::StringOutputStream out(&piece);  // appends
      pb::io::CodedOutputStream coded(&out);
      coded.WriteVarint32(kTag);
      coded.WriteVarint32(static_cast<uint32_t>(values[i]->ByteSizeLong()));
      values[i]->SerializeWithCachedSizes(&coded);
    }
    if (piece.size() < ValueFanOut::kPieceBytes && i + 1 < values.size()) continue;
    pieces.emplace_back(piece);
    piece.clear();
  }
}

}  // namespace

absl::Time ValueFanOut::Log::due() const {
  size_t count = newcomers.size() + (watches == nullptr ? 0 : watches->size());
  absl::Duration moment = kMomentPerWatcher * static_cast<int64_t>(count);
  return std::min(last + moment, first + kMomentsMost * moment);
}

void ValueFanOut::Add(SendValues send) {
  Log& log = logs_[send.log.get()];
  log.last = Now();
  if (!log.waits()) log.first = log.last;
  if (send.watches->size() == 1) {
    log.newcomers.insert(send.watches->front());
  } else {
    log.watches = std::move(send.watches);
  }
  log.log = std::move(send.log);
}

void ValueFanOut::Send(Log& log) {
  Encode(log.log->values, log.encoded, log.pieces);
  log.encoded = log.log->values.size();
  WatchList watches = std::exchange(log.watches, nullptr);
  std::set<WatchId> newcomers = std::exchange(log.newcomers, {});
  if (watches != nullptr) newcomers.insert(watches->begin(), watches->end());
  for (WatchId watch : newcomers) {
    if (auto stream = watches_.Find(watch)) stream->Advance(log.pieces);
  }
}

absl::Duration ValueFanOut::SendDue() {
  if (logs_.empty()) return absl::InfiniteDuration();
  absl::Time now = Now();
  absl::Duration wait = absl::InfiniteDuration();
  for (auto it = logs_.begin(); it != logs_.end();) {
    Log& log = it->second;
    if (log.waits() && log.due() <= now) Send(log);
    if (log.waits()) wait = std::min(wait, log.due() - now);
    // The job has let go of it: that generation is over.
    it = !log.waits() && log.log.use_count() == 1 ? logs_.erase(it) : std::next(it);
  }
  return wait;
}

void ValueFanOut::SendAll() {
  for (auto& [key, log] : logs_) {
    if (log.waits()) Send(log);
  }
}

}  // namespace trainyard
