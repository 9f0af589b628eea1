#include "coordinator/core/core_loop.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/clock.h"
#include "common/limits.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr size_t kBatchEvents = 1'024;
constexpr absl::Duration kTickInterval = absl::Milliseconds(100);

void CheckInvariants(const Core& core, const Event* event) {
#ifdef TRAINYARD_CHECK_INVARIANTS
  if (absl::Status status = core.Check(); !status.ok()) {
    std::fprintf(stderr, "invariant broken after %s: %s\n", event == nullptr ? "start" : NameOf(*event),
                 std::string(status.message()).c_str());
    std::abort();
  }
#else
  (void)core;
  (void)event;
#endif
}

void Append(Output from, Output& to) {
  std::move(from.records.begin(), from.records.end(), std::back_inserter(to.records));
  std::move(from.effects.begin(), from.effects.end(), std::back_inserter(to.effects));
}

}  // namespace

CoreLoop::CoreLoop(Options options) : options_(std::move(options)), revision_(options_.revision) {}

CoreLoop::~CoreLoop() { Stop(); }

void CoreLoop::Start() { thread_ = std::thread([this] { Loop(); }); }

void CoreLoop::Stop() {
  options_.queue->Close();
  if (thread_.joinable()) thread_.join();
}

void CoreLoop::Loop() {
  while (true) {
    bool closed = options_.queue->closed();
    absl::StatusOr<size_t> handled = RunOnce(next_tick_);
    if (!handled.ok()) {
      options_.queue->Close();
      options_.failed(handled.status());
      return;
    }
    if (closed && *handled == 0) return;
  }
}

absl::StatusOr<size_t> CoreLoop::RunOnce(absl::Time until) {
  std::vector<Event> batch = options_.queue->Take(until, kBatchEvents);
  size_t taken = batch.size();
  // The clock may be set back; the core's time only goes forward.
  absl::Time now = last_now_ = std::max(last_now_, options_.clock->TimeNow());
  LoopRound round;
  round.queue_length = options_.queue->size();
  Output output;
  if (!std::exchange(started_core_, true)) {
    output = options_.core->Start(now);
    CheckInvariants(*options_.core, nullptr);
  }
  if (now >= next_tick_) {
    // Behind the batch: what was heard before these events were handled must not overtake them.
    batch.push_back(Tick{options_.heard ? options_.heard() : std::vector<Tick::Heard>()});
    next_tick_ = now + kTickInterval;
  }
  absl::Time begin = absl::Now();
  for (Event& event : batch) {
    round.events.push_back(NameOf(event));
#ifdef TRAINYARD_CHECK_INVARIANTS
    Event copy = event;
    Append(options_.core->Handle(std::move(event), now), output);
    CheckInvariants(*options_.core, &copy);
#else
    Append(options_.core->Handle(std::move(event), now), output);
#endif
  }
  round.handle_time = absl::Now() - begin;
  RETURN_IF_ERROR(Finish(std::move(output), std::move(round)));
  return taken;
}

absl::Status CoreLoop::Finish(Output output, LoopRound round) {
  round.records = output.records.size();
  if (!output.records.empty()) {
    absl::Time begin = absl::Now();
    RETURN_IF_ERROR(Commit(std::move(output.records)));
    round.commit_time = absl::Now() - begin;
  }
  for (Effect& effect : output.effects) options_.sink->Release(std::move(effect));
  options_.sink->Flush();
  if (options_.observe) options_.observe(round, *options_.core);
  return absl::OkStatus();
}

absl::Status CoreLoop::Commit(std::vector<Record> records) {
  // Of several records with one key the last one counts, at its place: order matters where a batch is split.
  absl::flat_hash_set<std::string> seen;
  std::vector<StoreEntry> entries;
  for (auto it = records.rbegin(); it != records.rend(); ++it) {
    if (seen.insert(it->key).second) entries.push_back({std::move(it->key), std::move(it->value)});
  }
  std::reverse(entries.begin(), entries.end());
  for (size_t begin = 0; begin < entries.size(); begin += Store::kEntriesMax) {
    size_t end = std::min(entries.size(), begin + Store::kEntriesMax);
    RETURN_IF_ERROR(CommitChunk({std::make_move_iterator(entries.begin() + static_cast<ptrdiff_t>(begin)),
                                 std::make_move_iterator(entries.begin() + static_cast<ptrdiff_t>(end))}));
  }
  return absl::OkStatus();
}

absl::Status CoreLoop::CommitChunk(const std::vector<StoreEntry>& entries) {
  // A full or busy disk is given the time of a take-over; everything waits meanwhile, so nothing untrue is told.
  absl::Time deadline = absl::Now() + limits::kTakeOverWait;
  while (true) {
    absl::StatusOr<uint64_t> revision = options_.store->Commit(entries, revision_);
    if (revision.ok()) {
      revision_ = *revision;
      return absl::OkStatus();
    }
    bool again = absl::IsUnavailable(revision.status()) || absl::IsResourceExhausted(revision.status());
    bool going_down = again && options_.queue->AwaitClosed(absl::Milliseconds(50));
    if (!again || going_down || absl::Now() >= deadline) return revision.status();
  }
}

}  // namespace trainyard
