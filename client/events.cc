// trainctl events: the events and decisions of one job or of the whole cluster.
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/chain.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/job_calls.h"
#include "client/output.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr uint32_t kEventsDefault = 1000;
constexpr uint32_t kEventsMax = 10'000;
// Events are rare and people read them, so a delay of half a second does not matter.
constexpr absl::Duration kEventsPoll = absl::Milliseconds(500);

struct EventsOptions {
  std::string job_id;
  uint32_t limit = kEventsDefault;
  bool follow = false;
  bool json = false;
  ReconnectOptions reconnect;
};

void ShowEvent(const v1::Event& event, const EventsOptions& options) {
  if (options.json) return PrintJson(EventLine(event));
  Print(absl::StrCat(
      EventText(event, {.zone = absl::LocalTimeZone(), .now = absl::Now(), .job_ids = options.job_id.empty()}), "\n"));
}

// Printed before the remaining events, so that the list is not mistaken for a complete one.
void ShowDropped(uint64_t dropped, const EventsOptions& options) {
  if (dropped == 0) return;
  if (options.json) return PrintJson(absl::StrCat("{\"event\":\"dropped\",\"count\":", dropped, "}"));
  Print(absl::StrCat(DroppedText(dropped), "\n"));
}

// Shows new events. Returns whether the named job, if any, has ended.
bool ShowAll(const v1::ListEventsResponse& events, const EventsOptions& options, v1::ListEventsRequest* request) {
  bool ended = false;
  for (const v1::Event& event : events.events()) {
    ShowEvent(event, options);
    request->set_after_sequence(std::max(request->after_sequence(), event.sequence()));
    if (!options.job_id.empty() && event.has_state() && IsFinal(event.state().state())) ended = true;
  }
  FlushOutput();
  return ended;
}

absl::Status Events(const Globals& globals, EventsOptions options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals, options.reconnect.connect_wait()));
  if (!options.job_id.empty()) {
    ASSIGN_OR_RETURN(options.job_id, FindJob(*connection, options.job_id));
  }
  v1::ListEventsRequest request;
  request.set_job_id(options.job_id);
  request.set_limit(options.limit);
  ASSIGN_OR_RETURN(v1::ListEventsResponse first, ListEvents(*connection, request));
  ShowDropped(first.dropped(), options);
  bool ended = ShowAll(first, options, &request);
  request.set_limit(kEventsMax);
  Retry retry(options.reconnect.retry);
  while (options.follow && !ended && !OutputFailed()) {
    absl::SleepFor(kEventsPoll);
    auto more = ListEvents(*connection, request);
    if (more.ok()) {
      if (retry.is_unanswered()) Say("the coordinator answers again");
      retry.Answered();
      ended = ShowAll(*more, options, &request);
      continue;
    }
    if (!IsUnanswered(more.status())) return more.status();
    if (!retry.is_unanswered()) Say(absl::StrCat(more.status().message(), "; trying again"));
    absl::optional<absl::Duration> wait = retry.Failed(Clock::GetSteadyClock().TimeNow());
    if (!wait.has_value()) return more.status();
    absl::SleepFor(*wait);
  }
  return absl::OkStatus();
}

}  // namespace

void AddEvents(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<EventsOptions>();
  CLI::App* verb = app.add_subcommand("events", "List events and decisions of the cluster or of one job");
  verb->add_option("--job", options->job_id, "Only events of this job")->type_name("JOB");
  verb->add_flag("-f,--follow", options->follow, "Keep printing new events; with --job, until the job ends");
  verb->add_option("--limit", options->limit, "Only the newest N events")
      ->capture_default_str()
      ->check(CLI::Range(1u, kEventsMax));
  AddJson(*verb, &options->json, "One JSON object per line");
  AddReconnectFor(*verb, &options->reconnect);
  verb->footer(
      "Steps and evaluations are not listed; trainctl watch shows them. If older events have been dropped, the\n"
      "first line gives their number; with --json it is {\"event\":\"dropped\",\"count\":N}.\n\n"
      "Examples:\n  trainctl events\n  trainctl events --job k3x7q2ab --json\n  trainctl events -f");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Events(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
