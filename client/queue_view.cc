#include "client/queue_view.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/exit_code.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

std::string OneLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string StartText(const v1::QueuedJob& job) {
  if (!job.has_start_in_s()) return Printable(job.forecast(), 200);
  if (job.start_in_s() < 1) return "now";
  return absl::StrCat("in ", DurationText(absl::Seconds(job.start_in_s())));
}

std::string SlotsText(const v1::QueuedJob& job) {
  return job.min_ranks() < job.ranks() ? absl::StrCat(job.min_ranks(), " to ", job.ranks()) : absl::StrCat(job.ranks());
}

// "12 of 16", or "12" without a limit.
std::string UseText(uint32_t used, bool has_limit, uint32_t limit) {
  return has_limit ? absl::StrCat(used, " of ", limit) : absl::StrCat(used);
}

std::string NamespaceTable(const v1::GetQueueResponse& queue, int columns) {
  std::vector<std::vector<std::string>> rows = {
      {"NAMESPACE", "SLOTS", "GPUS", "RUNNING", "QUEUED", "OLDEST WAIT", "SHARE", "WEIGHT", "PREEMPTED"}};
  for (const v1::NamespaceUse& use : queue.namespaces()) {
    rows.push_back({use.name() == "*" ? "* (all others)" : Printable(use.name(), 63),
                    UseText(use.slots(), use.has_max_slots(), use.max_slots()),
                    UseText(use.gpus(), use.has_max_gpus(), use.max_gpus()),
                    UseText(use.running(), use.has_max_running(), use.max_running()),
                    UseText(use.queued(), use.has_max_queued(), use.max_queued()),
                    use.queued() == 0 ? "-" : DurationText(absl::Seconds(use.oldest_wait_s())),
                    absl::StrFormat("%.0f %%", 100 * use.share()), absl::StrFormat("%g", use.weight()),
                    absl::StrCat(use.preemptions())});
  }
  return Table(rows, columns);
}

}  // namespace

std::string QueueText(const v1::GetQueueResponse& queue, int columns) {
  std::string text;
  if (queue.jobs().empty()) {
    text = "no job waits for slots\n";
  } else {
    std::vector<std::vector<std::string>> rows = {
        {"POS", "ID", "NAME", "NAMESPACE", "PRIORITY", "SLOTS", "WAITED", "START", "REASON"}};
    for (const v1::QueuedJob& job : queue.jobs()) {
      std::string reason = Printable(job.reason(), 500);
      if (!job.preempted_by().empty()) reason = absl::StrCat("preempted by job ", job.preempted_by(), "; ", reason);
      rows.push_back({absl::StrCat(job.position()), job.job_id(), Printable(job.name(), 100),
                      Printable(job.namespace_(), 63), absl::StrCat(job.priority()), SlotsText(job),
                      DurationText(absl::Seconds(job.wait_s())), StartText(job), std::move(reason)});
    }
    text = Table(rows, columns);
  }
  if (!queue.namespaces().empty()) absl::StrAppend(&text, "\n", NamespaceTable(queue, columns));
  return text;
}

std::string QueuedJobJson(const v1::QueuedJob& job) {
  Json waits_for = Json::array();
  for (const std::string& id : job.waits_for()) waits_for.push_back(id);
  return OneLine({{"event", "queued"},
                  {"position", job.position()},
                  {"id", job.job_id()},
                  {"name", job.name()},
                  {"namespace", job.namespace_()},
                  {"priority", job.priority()},
                  {"state", StateName(job.state())},
                  {"ranks", job.ranks()},
                  {"min_ranks", job.min_ranks()},
                  {"wait_s", job.wait_s()},
                  {"cause", job.cause()},
                  {"reason", job.reason()},
                  {"waits_for", waits_for},
                  {"preempted_by", job.preempted_by().empty() ? Json() : Json(job.preempted_by())},
                  {"start_in_s", job.has_start_in_s() ? Json(job.start_in_s()) : Json()},
                  {"forecast", job.forecast()}});
}

std::string NamespaceJson(const v1::NamespaceUse& use) {
  const auto limit = [](bool has, uint32_t value) { return has ? Json(value) : Json(); };
  return OneLine({{"event", "namespace"},
                  {"name", use.name()},
                  {"weight", use.weight()},
                  {"share", use.share()},
                  {"slots", use.slots()},
                  {"max_slots", limit(use.has_max_slots(), use.max_slots())},
                  {"gpus", use.gpus()},
                  {"max_gpus", limit(use.has_max_gpus(), use.max_gpus())},
                  {"running", use.running()},
                  {"max_running", limit(use.has_max_running(), use.max_running())},
                  {"queued", use.queued()},
                  {"max_queued", limit(use.has_max_queued(), use.max_queued())},
                  {"max_priority", use.max_priority()},
                  {"oldest_wait_s", use.oldest_wait_s()},
                  {"preemptions", use.preemptions()}});
}

}  // namespace trainyard::client
