#include "coordinator/rpc/value_fan_out.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/clock.h"

namespace trainyard {
namespace {

// Values are collected for this time per host, which is about the cost of a write, so that collecting takes as long as
// sending. Values are sent immediately when their number is a multiple of the number of hosts, because then all hosts
// may have written equally many, and may be waiting for the values of all ranks.
constexpr absl::Duration kCollectTimePerHost = absl::Microseconds(10);
// While values keep arriving, they are collected for at most this multiple of the collecting time of all hosts.
constexpr int kMaxCollectTimes = 20;

absl::Time Now() { return Clock::GetSteadyClock().TimeNow(); }

// Encodes values as complete fields of a StoreValueList, so that concatenated pieces are a StoreValueList too.
void Encode(const std::vector<ValuePtr>& values, size_t begin, std::vector<ValuePiece>& pieces) {
  namespace pb = google::protobuf;
  constexpr uint32_t kTag = pb::internal::WireFormatLite::MakeTag(
      v1::StoreValueList::kValuesFieldNumber, pb::internal::WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::string piece;
  uint32_t count = 0;
  for (size_t i = begin; i < values.size(); ++i) {
    {
      pb::io::StringOutputStream out(&piece);  // appends
      pb::io::CodedOutputStream coded(&out);
      coded.WriteVarint32(kTag);
      coded.WriteVarint32(static_cast<uint32_t>(values[i]->ByteSizeLong()));
      values[i]->SerializeWithCachedSizes(&coded);
    }
    ++count;
    if (piece.size() < ValueFanOut::kPieceBytes && i + 1 < values.size()) continue;
    pieces.push_back({grpc::Slice(piece), std::exchange(count, 0)});
    piece.clear();
  }
}

}  // namespace

absl::Time ValueFanOut::Log::due() const {
  size_t count = newcomers.size() + (sessions == nullptr ? 0 : sessions->size());
  absl::Duration collect_time = kCollectTimePerHost * static_cast<int64_t>(count);
  return std::min(last + collect_time, first + kMaxCollectTimes * collect_time);
}

void ValueFanOut::Add(SendValues send) {
  Log& log = logs_[send.log.get()];
  log.last = Now();
  if (!log.has_unsent()) log.first = log.last;
  if (send.sessions->size() == 1) {
    log.newcomers.insert(send.sessions->front());
  } else {
    if (send.log->values.size() % send.sessions->size() == 0) log.first = log.last = absl::InfinitePast();
    log.sessions = std::move(send.sessions);
  }
  log.log = std::move(send.log);
}

void ValueFanOut::Send(Log& log) {
  Encode(log.log->values, log.encoded, log.pieces);
  log.encoded = log.log->values.size();
  SessionList sessions = std::exchange(log.sessions, nullptr);
  std::set<SessionId> newcomers = std::exchange(log.newcomers, {});
  auto send = [&](SessionId session) {
    auto stream = streams_.Find(session);
    size_t& pieces_sent = log.pieces_sent[session];
    if (stream == nullptr || pieces_sent == log.pieces.size()) return;
    stream->SendValues(log.log->job, log.log->generation, log.pieces.data() + pieces_sent,
                       log.pieces.size() - pieces_sent);
    pieces_sent = log.pieces.size();
  };
  if (sessions != nullptr) std::for_each(sessions->begin(), sessions->end(), send);
  std::for_each(newcomers.begin(), newcomers.end(), send);
}

absl::Duration ValueFanOut::SendDue() {
  if (logs_.empty()) return absl::InfiniteDuration();
  absl::Time now = Now();
  absl::Duration wait = absl::InfiniteDuration();
  for (auto it = logs_.begin(); it != logs_.end();) {
    Log& log = it->second;
    if (log.has_unsent() && log.due() <= now) Send(log);
    if (log.has_unsent()) wait = std::min(wait, log.due() - now);
    // Removes a log that only this map still uses: the job has released it, because the generation has formed or ended.
    it = !log.has_unsent() && log.log.use_count() == 1 ? logs_.erase(it) : std::next(it);
  }
  return wait;
}

}  // namespace trainyard
