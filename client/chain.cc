#include "client/chain.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/column_width.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/text.h"
#include "common/escape.h"
#include "common/plural.h"

namespace trainyard::client {
namespace {

constexpr size_t kChainTextBytes = 2000;

struct EventDescription {
  std::string kind;
  std::string text;
};

EventDescription DescribeEvent(const v1::Event& event) {
  switch (event.kind_case()) {
    case v1::Event::kState:
      return {absl::AsciiStrToLower(StateName(event.state().state())), event.state().reason()};
    case v1::Event::kNotice:
      return {event.notice().rule().empty() ? event.notice().level() : absl::StrCat("[", event.notice().rule(), "]"),
              event.notice().text()};
    case v1::Event::kCheckpoint:
      return {"checkpoint", absl::StrCat("step ", event.checkpoint().step(), ", ", event.checkpoint().path())};
    case v1::Event::kStep:
      if (!event.step().has_loss()) return {"step", absl::StrCat(event.step().step())};
      return {"step", absl::StrFormat("%d, loss %.4f", event.step().step(), event.step().loss())};
    case v1::Event::kEval:
      return {"evaluation", absl::StrFormat("step %d, loss %.4f", event.eval().step(), event.eval().loss())};
    case v1::Event::kProbe:
      return {"probe", absl::StrFormat("rank %d on %s: %.1f GFLOP/s", event.probe().rank(), event.probe().host(),
                                       event.probe().matmul_gflops())};
    case v1::Event::KIND_NOT_SET:
      break;
  }
  return {"unknown", "sent by a newer coordinator"};
}

std::string TimeText(int64_t unix_ms, const EventTextOptions& options) {
  const absl::Time time = absl::FromUnixMillis(unix_ms);
  const bool today = absl::ToCivilDay(time, options.zone) == absl::ToCivilDay(options.now, options.zone);
  return absl::FormatTime(today ? "%H:%M:%E3S" : "%Y-%m-%d %H:%M:%E3S", time, options.zone);
}

// Indents all lines of `text` but the first.
std::string Indented(const std::string& text, size_t columns) {
  std::string clean;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text).substr(0, kChainTextBytes), '\n')) {
    if (!clean.empty()) absl::StrAppend(&clean, "\n", std::string(columns, ' '));
    absl::StrAppend(&clean, EscapeText(line));
  }
  return clean;
}

}  // namespace

bool IsDecision(const v1::Event& event) {
  if (event.has_notice()) return !event.notice().rule().empty() || event.notice().level() != "info";
  return event.has_state();
}

bool WasDisturbed(const v1::Job& job, const v1::ListEventsResponse& events) {
  const auto disturbs = [](const v1::Event& event) {
    if (!event.has_notice()) return false;
    const std::string& rule = event.notice().rule();
    return event.notice().level() != "info" || (!rule.empty() && rule != "placement" && rule != "operator");
  };
  return job.restarts() > 0 || job.unconfirmed() || job.unreachable() ||
         std::any_of(events.events().begin(), events.events().end(), disturbs);
}

std::string EventText(const v1::Event& event, const EventTextOptions& options) {
  EventDescription description = DescribeEvent(event);
  std::string line = absl::StrCat(TimeText(event.time_unix_ms(), options), "  ");
  if (options.job_ids) {
    std::string subject = event.job_id().empty()
                              ? (event.host().empty() ? "cluster" : absl::StrCat("host ", event.host()))
                              : absl::StrCat(event.job_id(), event.generation() > 0 ? " g" : "",
                                             event.generation() > 0 ? absl::StrCat(event.generation()) : "");
    absl::StrAppend(&line, Padded(Printable(subject, 80), 13), "  ");
  }
  absl::StrAppend(&line, Padded(Printable(description.kind, 64), 12), "  ");
  return absl::StrCat(line, Indented(description.text, TextColumns(line)));
}

std::string DroppedText(uint64_t dropped) {
  return dropped == 0 ? "" : Plural(dropped, "older event has been dropped", "older events have been dropped");
}

std::string WhyText(const v1::Job& job, const v1::ListEventsResponse& events, const EventTextOptions& options) {
  std::string text = absl::StrCat(JobTitle(job), ": ", StateName(job.state()), job.unconfirmed() ? ", unconfirmed" : "",
                                  job.unreachable() ? ", unreachable" : "", ", generation ", job.generation(),
                                  ", restarts ", job.restarts(), "\n");
  if (!job.reason().empty()) absl::StrAppend(&text, "  ", Printable(job.reason(), kChainTextBytes), "\n");
  uint64_t generation = 0;
  for (const v1::Event& event : events.events()) {
    if (!IsDecision(event)) continue;
    if (event.generation() != generation) {
      generation = event.generation();
      absl::StrAppend(&text, "generation ", generation, "\n");
    }
    absl::StrAppend(&text, "  ", EventText(event, options), "\n");
  }
  if (job.events_dropped() > 0) {
    absl::StrAppend(&text, "  ", DroppedText(job.events_dropped()), ", so this list is incomplete\n");
  } else if (job.generation() > 0 && !WasDisturbed(job, events)) {
    absl::StrAppend(&text,
                    "  nothing disturbed the job: no rank or host failed, stopped responding or delayed others, no "
                    "network was slow and no disk was full\n");
  }
  return text;
}

std::string WhyJson(const v1::Job& job, const v1::ListEventsResponse& events) {
  nlohmann::ordered_json chain = nlohmann::ordered_json::array();
  for (const v1::Event& event : events.events()) {
    if (IsDecision(event)) chain.push_back(nlohmann::ordered_json::parse(EventLine(event)));
  }
  nlohmann::ordered_json json = {{"id", job.job_id()},
                                 {"name", job.spec().name()},
                                 {"state", StateName(job.state())},
                                 {"reason", job.reason()},
                                 {"generation", job.generation()},
                                 {"restarts", job.restarts()},
                                 {"unconfirmed", job.unconfirmed()},
                                 {"unreachable", job.unreachable()},
                                 {"events_dropped", job.events_dropped()},
                                 {"disturbed", nullptr},
                                 {"chain", chain}};
  const bool disturbed = WasDisturbed(job, events);
  if (disturbed || job.events_dropped() == 0) json["disturbed"] = disturbed;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trainyard::client
