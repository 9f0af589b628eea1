#include "coordinator/policy/device.h"

#include "absl/strings/str_cat.h"
#include "common/plural.h"

namespace trainyard {
namespace {

constexpr uint32_t kBfloat16Major = 8;  // the compute capability from which GPUs compute in bf16

// Returns why the job cannot use the host's GPUs; empty: it can.
std::string ReasonAgainstGpus(const DeviceHost& host, bool needs_bfloat16) {
  const std::string& name = host.name.value();
  if (host.gpus == 0) return absl::StrCat(name, " has no GPU", host.gpu_note.empty() ? "" : ": ", host.gpu_note);
  if (!host.cuda_note.empty()) return absl::StrCat("trainers cannot use the GPUs of ", name, ": ", host.cuda_note);
  if (host.gpus < host.ranks) {
    return absl::StrCat(name, " has ", Plural(host.gpus, "GPU"), " for ", Plural(host.ranks, "rank"));
  }
  if (needs_bfloat16 && host.compute_major == 0) {
    return absl::StrCat("the compute capability of a GPU of ", name, " is not known, and the job requests bf16");
  }
  if (needs_bfloat16 && host.compute_major < kBfloat16Major) {
    return absl::StrCat("a GPU of ", name, " does not compute in bf16, which the job requests");
  }
  if (!host.other_jobs.empty()) return absl::StrCat("the GPUs of ", name, " may be in use by ", host.other_jobs);
  return "";
}

}  // namespace

DeviceDecision DecideDevice(const DeviceFacts& facts) {
  for (const DeviceHost& host : facts.hosts) {
    if (std::string against = ReasonAgainstGpus(host, facts.needs_bfloat16); !against.empty()) return {false, against};
  }
  if (facts.hosts.empty()) return {false, "the job has no host"};
  const DeviceHost& first = facts.hosts.front();
  const std::string reason =
      absl::StrCat(first.name.value(), " has ", Plural(first.gpus, "GPU"), " for ", Plural(first.ranks, "rank"));
  const size_t more = facts.hosts.size() - 1;
  if (more == 0) return {true, reason};
  return {true, absl::StrCat(reason, ", and ", Plural(more, "more host has", "more hosts have"), " enough too")};
}

}  // namespace trainyard
