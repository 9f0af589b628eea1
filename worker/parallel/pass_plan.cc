#include "worker/parallel/pass_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

// Walks through the uses of units in the order of a pass and adds gathers, frees and reductions.
class PassPlanner {
 public:
  PassPlanner(const std::vector<int64_t>& elements, bool with_backward, const PassPlanOptions& options)
      : elements_(elements),
        options_(options),
        live_(elements.size()),
        waited_(elements.size()),
        has_part_(elements.size()) {
    const int units = static_cast<int>(elements.size());
    for (int unit = 0; unit < units; ++unit) uses_.push_back({UnitAct::kForward, unit});
    for (int unit = units - 1; with_backward && unit >= 0; --unit) {
      if (unit == 0 || unit >= options.first_backward) uses_.push_back({UnitAct::kBackward, unit});
    }
    prefetch_ = options.overlap ? options.prefetch_elements : 0;
  }

  std::vector<UnitAction> Plan() {
    for (size_t use = 0; use < uses_.size(); ++use) {
      const auto [act, unit] = uses_[use];
      Gather(unit);
      Wait(unit);
      Prefetch(use);
      plan_.push_back(uses_[use]);
      if (act == UnitAct::kBackward) {
        Reduce(unit);
        Free(unit);
      } else if (unit != 0 && !StaysGathered(use)) {
        IsUsedAgain(use) && options_.reshards ? Reshard(unit) : Free(unit);
      }
    }
    Free(0);  // still gathered if there was no backward
    for (int unit : reducing_) plan_.push_back({UnitAct::kWaitReduce, unit});
    return std::move(plan_);
  }

 private:
  void Gather(int unit) {
    if (live_[unit] || elements_[unit] == 0) return;
    live_[unit] = true;
    waited_[unit] = false;
    if (unit != 0) num_live_ += elements_[unit];
    plan_.push_back({has_part_[unit] ? UnitAct::kRegather : UnitAct::kGather, unit});
    has_part_[unit] = false;
  }
  void Wait(int unit) {
    if (live_[unit] && !waited_[unit]) plan_.push_back({UnitAct::kWaitGather, unit});
    waited_[unit] = true;
  }
  void Free(int unit) {
    if (!live_[unit]) return;
    live_[unit] = false;
    if (unit != 0) num_live_ -= elements_[unit];
    plan_.push_back({UnitAct::kFree, unit});
  }

  void Reshard(int unit) {
    Free(unit);
    if (plan_.back() != UnitAction{UnitAct::kFree, unit}) return;  // the unit has no elements
    plan_.back().act = UnitAct::kReshard;
    has_part_[unit] = true;
  }

  // Gathers the units that are used next in the same direction, while use `use` computes.
  void Prefetch(size_t use) {
    int64_t ahead = 0;
    for (size_t next = use + 1; next < uses_.size() && uses_[next].act == uses_[use].act; ++next) {
      const int unit = uses_[next].unit;
      if (unit == 0) break;
      const bool first = next == use + 1;
      ahead += elements_[unit];
      if (prefetch_ < 0 ? !first : ahead > prefetch_) break;
      if (live_[unit]) continue;
      if (num_live_ + elements_[unit] > options_.max_live_elements) break;
      Gather(unit);
    }
  }

  auto BackwardOf(size_t use) const {
    const UnitAction backward{UnitAct::kBackward, uses_[use].unit};
    return std::find(uses_.begin() + static_cast<long>(use), uses_.end(), backward);
  }
  bool IsUsedAgain(size_t use) const { return BackwardOf(use) != uses_.end(); }

  // Whether the unit of forward use `use` stays gathered for its backward.
  bool StaysGathered(size_t use) const {
    const auto backward_use = BackwardOf(use);
    if (backward_use == uses_.end()) return false;
    if (!options_.reshard_after_forward) return true;
    if (prefetch_ == 0) return false;
    int64_t between = 0, largest_gather = 0;
    for (auto it = uses_.begin() + static_cast<long>(use) + 1; it != backward_use; ++it) {
      between += elements_[it->unit];
      if (!live_[it->unit]) largest_gather = std::max(largest_gather, elements_[it->unit]);
    }
    return between <= options_.reuse_elements && num_live_ + largest_gather <= options_.max_live_elements;
  }

  bool Trains(int unit) const { return options_.trained.empty() || options_.trained[unit]; }

  // With overlap, waits for the reduction of a unit only before the reduction of the next unit starts. The wait also
  // starts the all-reduce across replicas (Reducer::Settle).
  void Reduce(int unit) {
    if (!options_.reduce || elements_[unit] == 0 || !Trains(unit)) return;
    if (options_.overlap && !reducing_.empty()) {
      plan_.push_back({UnitAct::kWaitReduce, reducing_.front()});
      reducing_.clear();
    }
    plan_.push_back({UnitAct::kReduce, unit});
    reducing_.push_back(unit);
    if (options_.overlap) return;
    plan_.push_back({UnitAct::kWaitReduce, unit});
    reducing_.clear();
  }

  const std::vector<int64_t>& elements_;
  const PassPlanOptions& options_;
  int64_t prefetch_ = 0;
  std::vector<UnitAction> uses_;
  std::vector<bool> live_, waited_, has_part_;
  int64_t num_live_ = 0;  // elements, without the root
  std::vector<int> reducing_;
  std::vector<UnitAction> plan_;
};

const char* ActName(UnitAct act) {
  switch (act) {
    case UnitAct::kGather:
      return "gather";
    case UnitAct::kWaitGather:
      return "wait-gather";
    case UnitAct::kForward:
      return "forward";
    case UnitAct::kFree:
      return "free";
    case UnitAct::kReshard:
      return "reshard";
    case UnitAct::kRegather:
      return "regather";
    case UnitAct::kBackward:
      return "backward";
    case UnitAct::kReduce:
      return "reduce";
    case UnitAct::kWaitReduce:
      return "wait-reduce";
  }
  return "";
}

}  // namespace

std::vector<UnitAction> PlanPass(const std::vector<int64_t>& unit_elements, bool with_backward,
                                 const PassPlanOptions& options) {
  return PassPlanner(unit_elements, with_backward, options).Plan();
}

int PlanSlots(const std::vector<UnitAction>& plan, bool gradients_in_slots, const std::vector<bool>& trained) {
  // Makes the same choices as SlotPool, but adds a slot where SlotPool would wait.
  int num_free = 0, num_slots = 0;
  std::vector<int> pending;  // units whose reduction still reads a slot
  auto use_slot = [&] { num_free > 0 ? --num_free : ++num_slots; };
  for (const auto& [act, unit] : plan) {
    if (unit == 0) continue;
    switch (act) {
      case UnitAct::kGather:
        if (pending.empty()) {
          use_slot();
        } else {  // it runs after the oldest reduction, in the same communicator, and takes over its slot
          pending.erase(pending.begin());
        }
        break;
      case UnitAct::kRegather:  // through another communicator, so it cannot queue behind a reduction
        use_slot();
        break;
      case UnitAct::kFree:
      case UnitAct::kReshard:
        ++num_free;
        break;
      case UnitAct::kBackward:
        if (gradients_in_slots && (trained.empty() || trained[unit])) use_slot();
        break;
      case UnitAct::kReduce:
        if (gradients_in_slots) pending.push_back(unit);
        break;
      case UnitAct::kWaitReduce:
        num_free += static_cast<int>(std::erase(pending, unit));
        break;
      case UnitAct::kWaitGather:
      case UnitAct::kForward:
        break;
    }
  }
  return num_slots;
}

std::string ToString(const std::vector<UnitAction>& plan) {
  return absl::StrJoin(plan, ", ", [](std::string* out, const UnitAction& action) {
    absl::StrAppend(out, ActName(action.act), " ", action.unit);
  });
}

}  // namespace trainyard
