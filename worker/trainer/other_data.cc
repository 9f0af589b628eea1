#include "worker/trainer/other_data.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/saving/sentences.h"
#include "worker/trainer/restore.h"

namespace trainyard {
namespace {

// The slowest rank may still be reading its files while the others wait for it.
constexpr absl::Duration kHashingLimit = absl::Hours(12);
constexpr size_t kOtherHostsShown = 3;

struct SharedHashes {
  DataOfCheckpoint checkpoint;
  std::vector<DataOfRank> ranks;
};

// Collective.
absl::StatusOr<SharedHashes> ShareHashes(const StartOrder& order, const DataOfCheckpoint& checkpoint,
                                         const std::string& own_hash, Communicator& world) {
  RETURN_IF_ERROR(world.MonitoredBarrier(kHashingLimit)) << "while the ranks read their data";
  const std::string own =
      absl::StrCat(own_hash, "\n", order.host, "\n", checkpoint.content_hash, "\n", checkpoint.host);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(own, world), << "while comparing the data");
  SharedHashes shared;
  for (const std::string& sentence : all) {
    std::vector<std::string> fields = absl::StrSplit(sentence, '\n');
    fields.resize(4);  // a sentence with very long names was cut
    if (shared.ranks.empty()) shared.checkpoint = {.content_hash = fields[2], .host = fields[3]};
    shared.ranks.push_back({.host = fields[1], .content_hash = fields[0]});
  }
  return shared;
}

}  // namespace

absl::Status RefuseDataOrHosts(const StartOrder& order, const DataOfCheckpoint& checkpoint,
                               absl::FunctionRef<std::string()> content_hash, Communicator& world, Link* link,
                               absl::Status refusal) {
  if (!order.restart_step.has_value()) return refusal;
  if (link != nullptr) link->ReportProgress(Phase::kLoad, 0);
  ASSIGN_OR_RETURN(const SharedHashes shared, ShareHashes(order, checkpoint, content_hash(), world));
  const std::vector<bool> has_other = FindHostsWithOtherData(shared.checkpoint, shared.ranks);
  if (has_other.empty()) return refusal;
  std::vector<std::string> others;
  for (size_t rank = 0; rank < has_other.size(); ++rank) {
    if (has_other[rank]) others.push_back(absl::StrCat("rank ", rank, " on ", shared.ranks[rank].host));
  }
  const size_t own = static_cast<size_t>(order.rank);
  if (!has_other[own]) {
    return absl::AbortedError(absl::StrCat("the data of ", JoinFirst(others, kOtherHostsShown),
                                           " is not that of the checkpoint, so the job continues without these hosts"));
  }
  return CheckpointMissing(absl::FailedPreconditionError(
      absl::StrCat("host ", order.host, " has other data than the checkpoint of the job (content hash ",
                   shared.ranks[own].content_hash, ", expected ", shared.checkpoint.content_hash,
                   "); give it the files of the job's other hosts: ", refusal.message())));
}

}  // namespace trainyard
