#include "tests/sim/model_parallel.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/pipeline_schedule.h"
#include "tests/sim/world.h"

namespace trainyard::sim {
namespace {

constexpr absl::Duration kPacketTime = absl::Milliseconds(1);
constexpr absl::Duration kCutPollInterval = absl::Milliseconds(100);
// A backward pass takes twice as long as a forward pass.
constexpr double kForwardUnits = 1, kBackwardUnits = 2;
// Each stage computes for longer than the one before it, by this share of the time of the first stage. The coordinator
// must not report the ranks of the later stages as stragglers because of that.
constexpr double kLaterStage = 0.5;

std::string DescribeNumber(const char* what, uint64_t number, int micro_batch) {
  return absl::StrCat(what, " ", number, " (chunk 0, micro-batch ", micro_batch, ")");
}

}  // namespace

JobLayout LayoutOf(const JobPlan& plan) { return {.ranks = plan.ranks, .stages = plan.stages, .tensor = plan.tensor}; }

ModelParallel::ModelParallel(World& world, Group& group, const JobPlan& plan)
    : world_(world), group_(group), actors_(plan.ranks) {
  ListOperations(LayoutOf(plan));
  for (Actor& actor : actors_) actor.next = actor.operations.size();
}

size_t ModelParallel::AddLink(const char* kind, uint32_t from, uint32_t to) {
  const std::string name = absl::StrCat(kind, " ", from, "->", to);
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].name == name) return i;
  }
  links_.push_back({.name = name, .from = from, .to = to, .sender = {}, .receiver = {}});
  return links_.size() - 1;
}

size_t ModelParallel::AddSum(const char* kind, const std::vector<uint32_t>& members) {
  const std::string name = absl::StrCat(kind, " of ranks ", absl::StrJoin(members, ", "));
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i].name == name) return i;
  }
  Sum& sum = sums_.emplace_back();
  sum.name = name;
  for (uint32_t member : members) sum.members[member];
  return sums_.size() - 1;
}

void ModelParallel::ListOperations(const JobLayout& layout) {
  const int stages = static_cast<int>(layout.stages);
  const PipelineShape shape{.stages = stages, .chunks_per_rank = 1, .micro_batches = kMicroBatches};
  const PipelineSchedule schedule = *MakeSchedule(ScheduleKind::kOneForwardOneBackward, shape);
  const uint32_t stage_ranks = static_cast<uint32_t>(layout.stage_ranks());
  const double units = (kForwardUnits + kBackwardUnits) * (kMicroBatches + stages - 1);
  for (uint32_t rank = 0; rank < actors_.size(); ++rank) {
    const uint64_t stage = layout.StageOf(rank);
    std::vector<uint32_t> tensor, data;
    for (uint32_t other = 0; other < actors_.size(); ++other) {
      if (layout.StageOf(other) != stage) continue;
      if (layout.DataRankOf(other) == layout.DataRankOf(rank)) tensor.push_back(other);
      if (layout.TensorRankOf(other) == layout.TensorRankOf(rank)) data.push_back(other);
    }
    std::vector<Operation>& list = actors_[rank].operations;
    for (const PipelineAction& action : schedule.ranks[stage]) {
      const bool forward = action.kind == PipelineAction::kForward;
      const bool receives = forward ? stage > 0 : stage + 1 < layout.stages;
      const bool sends = forward ? stage + 1 < layout.stages : stage > 0;
      const char* kind = forward ? "activations" : "gradients";
      const uint32_t source = forward ? rank - stage_ranks : rank + stage_ranks;
      const uint32_t target = forward ? rank + stage_ranks : rank - stage_ranks;
      if (receives) list.push_back({Operation::kReceive, AddLink(kind, source, rank), action.micro_batch});
      list.push_back(
          {Operation::kCompute, 0, action.micro_batch,
           (forward ? kForwardUnits : kBackwardUnits) / units * (1 + kLaterStage * static_cast<double>(stage))});
      if (tensor.size() > 1) list.push_back({Operation::kSum, AddSum("tensor", tensor), action.micro_batch});
      if (sends) list.push_back({Operation::kSend, AddLink(kind, rank, target), action.micro_batch});
    }
    if (data.size() > 1) list.push_back({Operation::kSum, AddSum("data", data), 0});
  }
}

void ModelParallel::BeginStep(absl::Duration compute_time) {
  compute_time_ = compute_time;
  arrived_ = 0;
  for (uint32_t rank = 0; rank < actors_.size(); ++rank) {
    actors_[rank].next = 0;
    actors_[rank].computed = absl::ZeroDuration();
    Wake(rank);
  }
}

bool ModelParallel::IsRunning(uint32_t rank) const { return actors_[rank].next < actors_[rank].operations.size(); }

// A stopped rank advances when it continues.
void ModelParallel::Wake(uint32_t rank) {
  world_.engine.After(absl::ZeroDuration(), [this, rank] {
    Trainer* trainer = group_.Find(rank);
    if (trainer != nullptr) trainer->Do([this, rank] { Advance(rank); });
  });
}

void ModelParallel::Advance(uint32_t rank) {
  Actor& actor = actors_[rank];
  while (IsRunning(rank)) {
    if (group_.over()) return;
    const Operation& operation = actor.operations[actor.next];
    if (!LeavesOut(rank, operation) && !Run(rank, operation)) return;
    actor.begun = actor.pass_done = false;
    ++actor.next;
    if (!IsRunning(rank) && ++arrived_ == actors_.size()) group_.AllArrived();
  }
}

bool ModelParallel::LeavesOut(uint32_t rank, const Operation& operation) {
  Actor& actor = actors_[rank];
  if (actor.leaves_out_in == 0 || actor.begun || operation.kind == Operation::kCompute) return false;
  if (--actor.leaves_out_in > 0) return false;
  group_.NoteLeftOut(rank);
  return true;
}

bool ModelParallel::Run(uint32_t rank, const Operation& operation) {
  const bool begins = !actors_[rank].begun;
  actors_[rank].begun = true;
  switch (operation.kind) {
    case Operation::kCompute:
      return begins ? Compute(rank, operation) : actors_[rank].pass_done;
    case Operation::kSend:
      return Send(links_[operation.place], operation.micro_batch, begins);
    case Operation::kReceive:
      return Receive(links_[operation.place], operation.micro_batch, begins);
    case Operation::kSum:
      return Add(rank, sums_[operation.place], begins);
  }
  return true;
}

bool ModelParallel::Compute(uint32_t rank, const Operation& operation) {
  const absl::Duration time = compute_time_ * operation.share * group_.Find(rank)->slowness();
  actors_[rank].computed += time;
  world_.engine.After(time, [this, rank] {
    actors_[rank].pass_done = true;
    Wake(rank);
  });
  return false;
}

// Waits only if the link has no free slot, not for the receiver.
bool ModelParallel::Send(Link& link, int micro_batch, bool begins) {
  if (begins) {
    ++link.sender.started;
    link.sender.micro_batch = micro_batch;
  }
  if (link.sender.completed >= link.receiver.completed + kSlotsPerLink) return false;
  ++link.sender.completed;
  const size_t index = static_cast<size_t>(&link - links_.data());
  world_.engine.After(kPacketTime, [this, index, micro_batch] { Deliver(index, micro_batch); });
  return true;
}

void ModelParallel::Deliver(size_t index, int micro_batch) {
  Link& link = links_[index];
  if (group_.over()) return;
  if (!group_.DataArrives({link.from, link.to})) {
    world_.engine.After(kCutPollInterval, [this, index, micro_batch] { Deliver(index, micro_batch); });
    return;
  }
  link.arrived.push_back(micro_batch);
  Wake(link.to);
}

bool ModelParallel::Receive(Link& link, int micro_batch, bool begins) {
  if (begins) {
    ++link.receiver.started;
    link.receiver.micro_batch = micro_batch;
  }
  if (link.arrived.empty()) return false;
  const int found = link.arrived.front();
  link.arrived.pop_front();
  if (found != micro_batch) {
    group_.BreakAll();  // the packet is for another micro-batch
    return false;
  }
  ++link.receiver.completed;
  Wake(link.from);
  return true;
}

bool ModelParallel::Add(uint32_t rank, Sum& sum, bool begins) {
  End& own = sum.members[rank];
  if (begins) ++own.started;
  std::vector<uint32_t> ranks;
  for (const auto& [member, end] : sum.members) {
    if (end.started < own.started) return false;
    ranks.push_back(member);
  }
  if (!group_.DataArrives(ranks)) {
    world_.engine.After(kCutPollInterval, [this, rank] { Wake(rank); });
    return false;
  }
  own.completed = own.started;
  for (uint32_t member : ranks) {
    if (sum.members[member].completed < own.completed) Wake(member);
  }
  return true;
}

void ModelParallel::Report(uint32_t rank, v1::RankReport& report) const {
  const Actor& actor = actors_[rank];
  const Operation* waits = IsRunning(rank) && actor.begun ? &actor.operations[actor.next] : nullptr;
  const auto add = [&](const std::string& name, const End& end) {
    v1::CommunicatorReport& communicator = *report.add_communicators();
    communicator.set_name(name);
    communicator.set_started(end.started);
    communicator.set_completed(end.completed);
    return &communicator;
  };
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    if (link.from != rank && link.to != rank) continue;
    const bool sends = link.from == rank;
    const End& end = sends ? link.sender : link.receiver;
    v1::CommunicatorReport* communicator = add(link.name, end);
    communicator->set_last_started(DescribeNumber("packet", end.started, end.micro_batch));
    if (waits == nullptr || waits->place != i) continue;
    if (waits->kind != (sends ? Operation::kSend : Operation::kReceive)) continue;
    communicator->set_waits_in(DescribeNumber(sends ? "room for packet" : "receive", end.started, end.micro_batch));
  }
  for (size_t i = 0; i < sums_.size(); ++i) {
    const auto at = sums_[i].members.find(rank);
    if (at == sums_[i].members.end()) continue;
    v1::CommunicatorReport* communicator = add(sums_[i].name, at->second);
    communicator->set_last_started(absl::StrCat("all-reduce ", at->second.started));
    if (waits != nullptr && waits->kind == Operation::kSum && waits->place == i)
      communicator->set_waits_in(communicator->last_started());
  }
}

}  // namespace trainyard::sim
