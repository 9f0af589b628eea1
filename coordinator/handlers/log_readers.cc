#include "coordinator/handlers/log_readers.h"

#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/error_details.h"
#include "common/limits.h"
#include "coordinator/core/turn.h"

namespace trainyard {
namespace {

// How long the last lines may be in transit after the end of a job.
constexpr absl::Duration kLastLinesGrace = absl::Seconds(2);
// When to retry if a host has no free place for another reader.
constexpr absl::Duration kReadersRetry = absl::Seconds(1);

std::set<HostName> HostsOfReader(const Job& job, const v1::LogsRequest& request) {
  std::set<HostName> hosts;
  const std::set<uint32_t> wanted(request.ranks().begin(), request.ranks().end());
  for (const Rank& rank : job.ranks) {
    if (wanted.empty() || wanted.count(rank.record.rank()) > 0) hosts.insert(rank.host());
  }
  return hosts;
}

}  // namespace

absl::Status NotAttached(absl::string_view host) {
  absl::Status status = absl::UnavailableError(
      absl::StrCat("host ", host, " is not attached, and the output is stored there; try again when it is back"));
  return AddMetadata(AddReason(std::move(status), reasons::kHostNotConnected), "host", host);
}

std::string RequestLogs(Turn& turn, const Job& job, LogReader& reader, std::vector<std::string>& request_ids) {
  for (const HostName& name : HostsOfReader(job, reader.request)) {
    if (reader.requested.contains(name)) continue;
    auto host = turn.state.hosts.find(name);
    if (host == turn.state.hosts.end() || !host->second.attached()) return name.value();
    std::string request_id =
        absl::StrCat(turn.state.options.incarnation.value(), ".", reader.id.value(), ".", reader.next_request++);
    reader.open[request_id] = name;
    reader.requested.insert(name);
    request_ids.push_back(std::move(request_id));
    turn.Push(name);
  }
  return "";
}

absl::Status CheckLogRequests(const State& state, const LogReader& reader) {
  std::map<HostName, size_t> requests;
  for (const auto& [id, other] : state.readers) {
    for (const auto& [request_id, host] : other.open) ++requests[host];
  }
  for (const auto& [request_id, host] : reader.open) {
    if (requests[host] <= limits::kLogRequestsPerHost) continue;
    absl::Status status =
        absl::UnavailableError(absl::StrCat("host ", host.value(), " sends output to ", limits::kLogRequestsPerHost,
                                            " readers, which is the limit; try again when one of them has ended"));
    status = AddRetry(AddReason(std::move(status), reasons::kOverloaded), kReadersRetry);
    return AddMetadata(std::move(status), "host", host.value());
  }
  return absl::OkStatus();
}

void CloseLogReader(Turn& turn, ReaderId id, absl::Status status) {
  auto it = turn.state.readers.find(id);
  if (it == turn.state.readers.end()) return;
  for (const auto& [request_id, host] : it->second.open) turn.Push(host);
  turn.state.readers.erase(it);
  turn.Emit(EndLogs{id, std::move(status)});
}

void MoveLogsOfJob(Turn& turn, const Job& job) {
  std::vector<ReaderId> moved;
  for (auto& [id, reader] : turn.state.readers) {
    if (reader.request.job_id() != job.id.value() || !reader.request.follow()) continue;
    for (auto open = reader.open.begin(); open != reader.open.end();) {
      bool stays = job.ranks_on.contains(open->second);
      if (!stays) turn.Push(open->second);
      open = stays ? std::next(open) : reader.open.erase(open);
    }
    // A host with an open request follows the job's ranks in any generation.
    reader.requested.clear();
    for (const auto& [request_id, host] : reader.open) reader.requested.insert(host);
    std::vector<std::string> request_ids;
    RequestLogs(turn, job, reader, request_ids);
    if (request_ids.empty()) continue;
    turn.Emit(LogsOpened{id, std::move(request_ids)});
    moved.push_back(id);
  }
  for (ReaderId id : moved) {
    absl::Status status = CheckLogRequests(turn.state, turn.state.readers.at(id));
    if (!status.ok()) CloseLogReader(turn, id, std::move(status));
  }
}

void EndLogsOfJob(Turn& turn, const Job& job) {
  for (auto& [id, reader] : turn.state.readers) {
    if (reader.request.job_id() != job.id.value() || !reader.request.follow()) continue;
    reader.close_at = turn.now + kLastLinesGrace;
    for (const auto& [request_id, host] : reader.open) turn.Push(host);
  }
}

void EndLogsAtHost(Turn& turn, const Host& host) {
  std::vector<ReaderId> ended;
  for (const auto& [id, reader] : turn.state.readers) {
    for (const auto& [request_id, name] : reader.open) {
      if (name == host.name && (ended.empty() || ended.back() != id)) ended.push_back(id);
    }
  }
  for (ReaderId id : ended) CloseLogReader(turn, id, NotAttached(host.name.value()));
}

}  // namespace trainyard
