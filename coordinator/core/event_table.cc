#include "coordinator/core/event_table.h"

#include <array>
#include <type_traits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/core/event.h"

namespace trainyard {
namespace {

constexpr char kClient[] = "client";
constexpr char kDaemon[] = "daemon";
constexpr char kSender[] = "webhook sender";
constexpr char kTimer[] = "timer";

template <typename E>
struct Row {
  EventRow row;
};

template <typename... E>
constexpr std::array<EventRow, sizeof...(E)> MakeTable(const Row<E>&... rows) {
  static_assert(std::is_same_v<Event, std::variant<E...>>, "the table must list the events in the order of Event");
  return {rows.row...};
}

constexpr auto kTable = MakeTable(
    Row<SubmitJob>{{"SubmitJob", "submit_job", kClient, "Checks, records and queues a job"}},
    Row<GetJob>{{"GetJob", "get_job", kClient, "Returns one job with its ranks"}},
    Row<ListJobs>{{"ListJobs", "list_jobs", kClient, "Returns jobs by pages, newest first"}},
    Row<FindJobs>{{"FindJobs", "find_jobs", kClient, "Returns the jobs that match an id, its beginning or a name"}},
    Row<CancelJob>{{"CancelJob", "cancel_job", kClient, "Ends a job, with a save if requested"}},
    Row<RestartJob>{{"RestartJob", "restart_job", kClient, "Ends the group of a job and forms a new one"}},
    Row<PauseJob>{{"PauseJob", "pause_job", kClient, "Ends the group of a job and frees its slots until ResumeJob"}},
    Row<ResumeJob>{{"ResumeJob", "resume_job", kClient, "Queues a paused job again"}},
    Row<SaveJob>{{"SaveJob", "save_job", kClient, "Requests a checkpoint from a running job"}},
    Row<SetPriority>{{"SetPriority", "set_priority", kClient, "Changes the priority of a job"}},
    Row<GetQueue>{{"GetQueue", "get_queue", kClient, "Returns the waiting jobs in order, with reasons and forecasts"}},
    Row<SetHost>{{"SetHost", "set_host", kClient, "Cordons, drains, gives up or forgets a host"}},
    Row<GetServerInfo>{{"GetServerInfo", "get_server_info", kClient, "Returns version, cluster and free slots"}},
    Row<ListHosts>{{"ListHosts", "list_hosts", kClient, "Returns every known host"}},
    Row<ListEvents>{
        {"ListEvents", "list_events", kClient, "Returns the durable events of a job or the cluster by pages"}},
    Row<WatchJob>{{"WatchJob", "watch_job", kClient, "Requests the events of a job after a position"}},
    Row<WatchClosed>{{"WatchClosed", "watch_closed", kClient, "A watcher has disconnected"}},
    Row<OpenLogs>{{"OpenLogs", "open_logs", kClient, "Requests the output of ranks"}},
    Row<LogsClosed>{{"LogsClosed", "logs_closed", kClient, "A reader of output has disconnected"}},
    Row<AttachHost>{
        {"AttachHost", "attach_host", kDaemon, "A stream has opened; its Hello lists the trainers that run"}},
    Row<DetachHost>{{"DetachHost", "detach_host", kDaemon, "A stream has ended; the trainers continue"}},
    Row<HostDraining>{{"HostDraining", "host_draining", kDaemon, "The daemon is about to leave, or stays after all"}},
    Row<HostTrouble>{{"HostTrouble", "host_trouble", kDaemon, "The host can run no trainer now, or can again"}},
    Row<RevisionApplied>{{"RevisionApplied", "revision_applied", kDaemon, "The host has applied a desired state"}},
    Row<HostFactsReceived>{
        {"HostFactsReceived", "host_facts", kDaemon, "Facts about trainers: started, ready, saved, exited"}},
    Row<RankReportsReceived>{
        {"RankReportsReceived", "rank_reports", kDaemon, "Reports of ranks: phase, progress, steps, evaluations"}},
    Row<HostValuesReceived>{{"HostValuesReceived", "host_values", kDaemon, "Rendezvous values that ranks have put"}},
    Row<LogPushEnded>{{"LogPushEnded", "log_push_ended", kDaemon, "All output of one log request was sent"}},
    Row<WebhookDone>{{"WebhookDone", "webhook_done", kSender, "The webhook of a job was delivered or given up"}},
    Row<Tick>{
        {"Tick", "tick", kTimer, "Ten times a second: leases, grace periods, hangs, lost hosts, forming groups"}});

}  // namespace

absl::Span<const EventRow> EventTable() { return kTable; }

const char* NameOf(const Event& event) { return kTable[event.index()].name; }

std::string PrintEvents() {
  std::string text = "| Event | From | Meaning |\n|---|---|---|\n";
  for (const EventRow& row : kTable)
    absl::StrAppend(&text, "| ", row.type, " | ", row.from, " | ", row.meaning, " |\n");
  return text;
}

}  // namespace trainyard
