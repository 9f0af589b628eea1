// What the ranks of a job with a divided model do in a step, as worker/parallel/pipeline_executor does: each runs the
// schedule of its stage, receives from and sends to the neighbouring stages through channels with two slots, sums with
// its tensor ranks after every pass, and with its data ranks at the end. A rank that is stopped, slow or wrong holds up
// the others through these waits, which it reports.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "spec/job_layout.h"
#include "tests/sim/scenario.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::sim {

class Group;
class World;

JobLayout LayoutOf(const JobPlan& plan);

class ModelParallel {
 public:
  // `group` owns this object.
  ModelParallel(World& world, Group& group, const JobPlan& plan);

  // The ranks run their lists; then Group::AllArrived is called. `compute_time`: of a rank that is not slow.
  void BeginStep(absl::Duration compute_time);
  // Whether the rank has not run all of its list.
  bool IsRunning(uint32_t rank) const;
  absl::Duration ComputeTime(uint32_t rank) const { return actors_[rank].computed; }
  // Adds to `report` the channels and sums of the rank, and names the one in which the rank waits.
  void Report(uint32_t rank, v1::RankReport& report) const;
  // A fault: the rank leaves out a receive, a send or a sum, after this many others.
  void LeaveOutOperation(uint32_t rank, uint64_t after) { actors_[rank].leaves_out_in = after + 1; }

 private:
  struct Operation {
    enum Kind { kReceive, kCompute, kSend, kSum } kind;
    size_t place = 0;  // the index of the channel in links_, or of the sum in sums_
    int micro_batch = 0;
    double share = 0;  // of compute_time_
  };
  struct End {
    uint64_t started = 0, completed = 0;
    int micro_batch = 0;  // of the newest packet
  };
  struct Link {
    std::string name;
    uint32_t from = 0, to = 0;
    End sender, receiver;
    std::deque<int> arrived = {};  // micro-batches of the packets that were not received yet
  };
  struct Sum {
    std::string name;
    std::map<uint32_t, End> members;
  };
  struct Actor {
    std::vector<Operation> operations;
    size_t next = 0;
    bool begun = false;            // the next operation has begun
    bool pass_done = false;        // the computation that is the next operation has ended
    uint64_t leaves_out_in = 0;    // 0: never
    absl::Duration computed = {};  // in this step
  };

  size_t AddLink(const char* kind, uint32_t from, uint32_t to);
  size_t AddSum(const char* kind, const std::vector<uint32_t>& members);
  void ListOperations(const JobLayout& layout);
  void Wake(uint32_t rank);
  void Advance(uint32_t rank);
  bool LeavesOut(uint32_t rank, const Operation& operation);
  // Each returns whether the operation is complete.
  bool Run(uint32_t rank, const Operation& operation);
  bool Compute(uint32_t rank, const Operation& operation);
  bool Send(Link& link, int micro_batch, bool begins);
  bool Receive(Link& link, int micro_batch, bool begins);
  bool Add(uint32_t rank, Sum& sum, bool begins);
  void Deliver(size_t link, int micro_batch);

  World& world_;
  Group& group_;
  std::vector<Actor> actors_;  // by rank
  std::vector<Link> links_;
  std::vector<Sum> sums_;
  absl::Duration compute_time_;
  size_t arrived_ = 0;  // ranks that have run their lists
};

}  // namespace trainyard::sim
