#include "coordinator/handlers/check_hello.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/error_details.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/hold_jobs.h"
#include "coordinator/handlers/host_health.h"
#include "coordinator/policy/health.h"

namespace trainyard {
namespace {

constexpr size_t kHostNameBytes = 253;  // as long as a DNS name may be
constexpr uint32_t kSlotsMax = 1'024;
constexpr size_t kOutboxIdBytes = 64;  // stored in the host's record; daemons use shorter ones

bool IsHostName(absl::string_view name) {
  return !name.empty() && name.size() <= kHostNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

absl::Status CheckFields(const v1::Hello& hello) {
  const uint32_t oldest = hello.oldest_protocol() == 0 ? hello.protocol() : hello.oldest_protocol();
  if (hello.protocol() < limits::kOldestProtocol || oldest > limits::kProtocol || oldest > hello.protocol()) {
    const std::string& version = hello.inventory().version();
    const bool daemon_is_older = hello.protocol() < limits::kOldestProtocol;
    return AddReason(absl::FailedPreconditionError(absl::StrCat(
                         "the daemon of host ", hello.host().substr(0, 64), " has version ",
                         version.empty() ? "unknown" : version.substr(0, 64), " and supports protocol ", oldest, " to ",
                         hello.protocol(), "; the coordinator has version ", kVersion, " and supports ",
                         limits::kOldestProtocol, " to ", limits::kProtocol, ": ",
                         daemon_is_older ? absl::StrCat("install version ", kVersion, " of trainyard on the host")
                                         : "upgrade the coordinator to the version of the daemon")),
                     reasons::kIncompatibleVersion);
  }
  if (!IsHostName(hello.host())) {
    return absl::InvalidArgumentError(absl::StrCat("host name '", hello.host().substr(0, 64),
                                                   "' must consist of 1 to 253 letters, digits, '-', '.' and '_'"));
  }
  if (hello.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the daemon of host ", hello.host(), " sent incarnation 0, must be another number"));
  }
  if (hello.slots() < 1 || hello.slots() > kSlotsMax) {
    return absl::InvalidArgumentError(absl::StrCat("the daemon of host ", hello.host(), " offers ", hello.slots(),
                                                   " slots, must be 1 to ", kSlotsMax));
  }
  if (hello.outbox_id().size() > kOutboxIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the daemon of host ", hello.host(), " sent an outbox id of ",
                                                   hello.outbox_id().size(), " bytes, must have at most ",
                                                   kOutboxIdBytes));
  }
  return absl::OkStatus();
}

// A daemon that runs trainers of another cluster must not receive an empty desired state, which would end them. It
// tries again until its own coordinator is back or its trainers have ended.
absl::Status CheckCluster(const State& state, const v1::Hello& hello) {
  const std::string& ours = state.options.cluster_id;
  const auto& trainers = hello.trainers();
  const auto running = std::count_if(trainers.begin(), trainers.end(),
                                     [](const v1::RunningTrainer& trainer) { return !trainer.ended(); });
  if (hello.cluster_id().empty() || hello.cluster_id() == ours || running == 0) return absl::OkStatus();
  return AddReason(
      absl::UnavailableError(absl::StrCat(
          "host ", hello.host(), " runs ", Plural(static_cast<uint64_t>(running), "trainer"), " of cluster ",
          hello.cluster_id(), ", but this coordinator is that of cluster ", ours,
          "; start the coordinator with the --state folder of that cluster, or the daemon with --adopt-cluster, which "
          "ends those trainers and gives the host to this cluster")),
      reasons::kOtherCluster);
}

// A daemon of an earlier version would end trainers of unknown jobs, whatever the desired state lists.
absl::Status CheckUnknownJobs(const State& state, const v1::Hello& hello) {
  if (hello.protocol() >= limits::kUnknownJobsProtocol || hello.cluster_id() != state.options.cluster_id) {
    return absl::OkStatus();
  }
  for (const v1::RunningTrainer& running : hello.trainers()) {
    if (!IsUnknown(state, running.key())) continue;
    return AddReason(
        absl::UnavailableError(absl::StrCat("host ", hello.host(), " runs job ", running.key().job_id(),
                                            ", which this coordinator's store does not know, and its daemon, of an "
                                            "earlier version, would end the job; start the "
                                            "coordinator with the newer store, or install version ",
                                            kVersion, " of trainyard on the host")),
        reasons::kIncompatibleVersion);
  }
  return absl::OkStatus();
}

bool IsPast(const Host& host, uint64_t incarnation) {
  const auto& past = host.record.past_incarnations();
  return std::count(past.begin(), past.end(), incarnation) > 0;
}

// Whether this daemon process may use the name of the host.
absl::Status CheckIncarnation(const Turn& turn, const Host& host, const v1::Hello& hello) {
  if (host.record.incarnation() == hello.incarnation() || host.record.incarnation() == 0) return absl::OkStatus();
  if (IsPast(host, hello.incarnation())) {
    return AddReason(
        absl::AbortedError(absl::StrCat("a newer daemon named ", hello.host(), " has attached; this one must exit")),
        reasons::kDaemonReplaced);
  }
  HostFacts facts{.attached = host.attached(), .last_contact = host.last_contact, .lease = LeaseFor(turn.state, host)};
  if (host.attached() && CheckContact(turn.now, facts).reachable) {
    return AddReason(absl::AlreadyExistsError(absl::StrCat("another daemon named ", hello.host(), " is attached from ",
                                                           host.peer, " and running; give this one another --name")),
                     reasons::kHostNameInUse);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHello(const Turn& turn, const v1::Hello& hello) {
  RETURN_IF_ERROR(CheckFields(hello));
  RETURN_IF_ERROR(CheckCluster(turn.state, hello));
  RETURN_IF_ERROR(CheckUnknownJobs(turn.state, hello));
  auto host = turn.state.hosts.find(HostName(hello.host()));
  return host == turn.state.hosts.end() ? absl::OkStatus() : CheckIncarnation(turn, host->second, hello);
}

}  // namespace trainyard
