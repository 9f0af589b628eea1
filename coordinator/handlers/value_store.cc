#include "coordinator/handlers/value_store.h"

#include <memory>
#include <vector>

#include "coordinator/core/turn.h"

namespace trainyard {

void CloseStore(Job& job) { job.current.store.log = nullptr; }

void SendStoredValues(Turn& turn, const Host& host) {
  for (const JobId& id : host.jobs) {
    const Job& job = turn.state.jobs.at(id);
    if (!job.ranks_on.contains(host.name) || job.current.store.log == nullptr || job.current.store.log->values.empty())
      continue;
    turn.Emit(SendValues{job.current.store.log, std::make_shared<const std::vector<SessionId>>(1, host.session)});
  }
}

}  // namespace trainyard
