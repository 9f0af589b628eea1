// HostTrouble: a daemon reports why its host can run nothing now, or that it can again.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

constexpr size_t kTroubleBytes = 512;

}  // namespace

void Run(Turn& turn, HostTrouble& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;
  Host& host = turn.state.hosts.at(session->second);
  std::string trouble = CutText(event.trouble, kTroubleBytes);
  if (trouble == host.trouble) return;
  const bool had_trouble = !host.trouble.empty();
  host.trouble = std::move(trouble);
  const std::string& name = host.name.value();
  if (!had_trouble && !host.trouble.empty()) {
    turn.DecideCluster(
        host.name, DecisionRule::kNone, NoticeLevel::kError,
        absl::StrCat("host ", name, ": ", host.trouble, "; nothing is placed there until that is fixed"));
  } else if (had_trouble && host.trouble.empty()) {
    turn.DecideCluster(host.name, DecisionRule::kNone, NoticeLevel::kInfo,
                       absl::StrCat("host ", name, " can run ranks again"));
  }
  turn.ScheduleAll();
}

}  // namespace trainyard
