// The checks of a schedule's lists that do not need the graph of the dependencies between actions.
#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "plan/schedule_graph.h"

namespace trainyard {
namespace {

constexpr size_t kMaxListProblems = 10;

class ListChecker {
 public:
  explicit ListChecker(const PipelineSchedule& schedule) : schedule_(schedule), shape_(schedule.shape) {}

  std::vector<std::string> Check() {
    if (!SizesAreValid()) return problems_;
    for (int rank = 0; rank < shape_.stages; ++rank) CheckRank(rank);
    if (count_ > problems_.size()) problems_.push_back(AndMore(problems_.size(), count_, "", "problem"));
    return problems_;
  }

 private:
  bool SizesAreValid() {
    const auto check = [this](absl::string_view name, int64_t value, int64_t max) {
      if (value < 1 || value > max) Add(name, " is ", value, "; it must be 1 to ", max);
    };
    check("stages", shape_.stages, kMaxPipelineStages);
    check("chunks_per_rank", shape_.chunks_per_rank, kMaxChunksPerRank);
    check("micro_batches", shape_.micro_batches, kMaxScheduledForwards);
    if (!problems_.empty()) return false;
    const int64_t forwards = int64_t{shape_.model_chunks()} * shape_.micro_batches;
    if (forwards > kMaxScheduledForwards) {
      Add("the shape has ", forwards, " forwards; a schedule has at most ", kMaxScheduledForwards);
    } else if (schedule_.ranks.size() != static_cast<size_t>(shape_.stages)) {
      Add("there are lists for ", Plural(schedule_.ranks.size(), "rank"), "; expected ", shape_.stages,
          ", one for each stage");
    }
    return problems_.empty();
  }

  void CheckRank(int rank) {
    // The number of occurrences of F (forward), B (backward), I (the part of backward for the input) and W (the part
    // for the weights) for each micro-batch in each chunk.
    std::vector<std::array<uint8_t, 4>> seen(static_cast<size_t>(shape_.chunks_per_rank) * shape_.micro_batches);
    for (const PipelineAction& action : schedule_.ranks[rank]) {
      const std::string text = ActionText(action, shape_.chunks_per_rank);
      if (action.kind < PipelineAction::kForward || action.kind > PipelineAction::kBackwardWeight) {
        Add("rank ", rank, " has an action of kind ", static_cast<int>(action.kind), "; expected F, B, I or W");
      } else if (action.chunk < 0 || action.chunk >= shape_.chunks_per_rank || action.micro_batch < 0 ||
                 action.micro_batch >= shape_.micro_batches) {
        Add("rank ", rank, " has ", text, ", which does not exist: each rank has ",
            Plural(shape_.chunks_per_rank, "chunk"), " and ",
            Plural(shape_.micro_batches, "micro-batch", "micro-batches"), ", counted from 0");
      } else {
        CheckAction(rank, action, text, &seen[Index(action.chunk, action.micro_batch)]);
      }
    }
    for (int chunk = 0; chunk < shape_.chunks_per_rank; ++chunk) {
      for (int m = 0; m < shape_.micro_batches; ++m) CheckComplete(rank, chunk, m, seen[Index(chunk, m)]);
    }
  }

  void CheckAction(int rank, const PipelineAction& action, const std::string& text, std::array<uint8_t, 4>* seen) {
    using Action = PipelineAction;
    std::array<uint8_t, 4>& count = *seen;
    const auto name = [&](Action::Kind kind) {
      return ActionText({kind, action.chunk, action.micro_batch}, shape_.chunks_per_rank);
    };
    if (count[action.kind] != 0) {
      Add("rank ", rank, " has ", text, " more than once");
      return;
    }
    count[action.kind] = 1;
    if ((action.kind == Action::kBackward || action.kind == Action::kBackwardInput) && count[Action::kForward] == 0) {
      Add("rank ", rank, " has ", text, " before ", name(Action::kForward));
    } else if (action.kind == Action::kBackwardWeight && count[Action::kBackwardInput] == 0) {
      Add("rank ", rank, " has ", text, " before ", name(Action::kBackwardInput));
    }
    if (count[Action::kBackward] != 0 && (count[Action::kBackwardInput] != 0 || count[Action::kBackwardWeight] != 0)) {
      Add("rank ", rank, " has both ", name(Action::kBackward), " and ",
          name(count[Action::kBackwardInput] != 0 ? Action::kBackwardInput : Action::kBackwardWeight),
          "; a backward is either B, or I and W");
    }
  }

  void CheckComplete(int rank, int chunk, int micro_batch, const std::array<uint8_t, 4>& seen) {
    using Action = PipelineAction;
    const auto missing = [&](Action::Kind kind) {
      Add("rank ", rank, " lacks ", ActionText({kind, chunk, micro_batch}, shape_.chunks_per_rank));
    };
    if (seen[Action::kForward] == 0) missing(Action::kForward);
    if (seen[Action::kBackward] != 0) return;
    if (seen[Action::kBackwardInput] == 0 && seen[Action::kBackwardWeight] == 0) return missing(Action::kBackward);
    if (seen[Action::kBackwardInput] == 0) missing(Action::kBackwardInput);
    if (seen[Action::kBackwardWeight] == 0) missing(Action::kBackwardWeight);
  }

  size_t Index(int chunk, int micro_batch) const {
    return static_cast<size_t>(chunk) * shape_.micro_batches + micro_batch;
  }

  template <typename... Parts>
  void Add(const Parts&... parts) {
    if (++count_ <= kMaxListProblems) problems_.push_back(absl::StrCat(parts...));
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  std::vector<std::string> problems_;
  size_t count_ = 0;
};

}  // namespace

std::vector<std::string> ListProblems(const PipelineSchedule& schedule) { return ListChecker(schedule).Check(); }

}  // namespace trainyard
