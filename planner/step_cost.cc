#include "planner/step_cost.h"

#include <algorithm>
#include <cmath>

#include "planner/link_cost.h"
#include "spec/parallel_rules.h"

namespace trainyard::planner {
namespace {

double RateOf(const FlopRates& rates, v1::Precision type) {
  switch (type) {
    case v1::PRECISION_FP64:
      return rates.fp64;
    case v1::PRECISION_BF16:
      return rates.bf16;
    case v1::PRECISION_FP16:
      return rates.fp16;
    default:
      return rates.fp32;
  }
}

// Seconds of one micro-batch in one block or in the head.
struct PassTimes {
  double forward = 0, backward = 0;
  double recompute = 0;       // forward again, before backward
  double forward_tensor = 0;  // operations between tensor ranks
  double backward_tensor = 0;

  double forward_total() const { return forward + forward_tensor; }
  double backward_total() const { return backward + recompute + backward_tensor; }
};

class StepModel {
 public:
  StepModel(const ModelWork& work, const Pool& pool, const Layout& layout)
      : work_(work),
        pool_(pool),
        layout_(layout),
        tensor_(static_cast<double>(layout.tensor)),
        rate_(RateOf(pool.flops, work.type) * pool.efficiency),
        rows_(static_cast<double>(layout.micro * work.rows_per_sequence)),
        rounds_(static_cast<double>(RoundsOf(layout, work.global))),
        tensor_group_(GroupOf(pool, layout.tensor, 1)),
        block_(BlockTimes()),
        head_(HeadTimes()) {}

  StepCost Cost() {
    if (layout_.stages == 1) {
      AddPasses(rounds_);
      AddDataParallel();
    } else {
      AddPipeline();
      AddPipelineGradients();
    }
    AddUpdate();
    cost_.seconds = cost_.compute + cost_.recompute + cost_.communication + cost_.bubble + cost_.update;
    return cost_;
  }

 private:
  // A product takes as long as its operations, or as long as its weights are read if there are few rows.
  double ForwardSeconds(double flops, double parameters) const {
    const double by_operations = flops * rows_ / tensor_ / rate_;
    const double by_weights = parameters * work_.param_bytes / tensor_ / pool_.memory_bytes_per_s;
    return std::max(by_operations, by_weights) + pool_.block_overhead_s;
  }

  double TensorAllReduce() const {
    return AllReduceSeconds(pool_, tensor_group_, rows_ * work_.width * work_.param_bytes);
  }

  PassTimes BlockTimes() const {
    PassTimes times;
    times.forward = ForwardSeconds(work_.block_flops, work_.block_parameters);
    times.backward = (1 + work_.trained_share) * times.forward;
    if (layout_.tensor > 1) {
      // Attention and MLP each sum once in forward and once in backward. With divided sequences a sum becomes a
      // scatter and a gather, and backward gathers the inputs once more (0011-model-parallel.md).
      times.forward_tensor = 2 * TensorAllReduce();
      times.backward_tensor = (layout_.sequence ? 3 : 2) * TensorAllReduce();
    }
    if (layout_.recompute == v1::RECOMPUTE_MODE_BLOCKS) {
      times.recompute = times.forward;
      times.backward_tensor += times.forward_tensor;
    } else if (layout_.recompute == v1::RECOMPUTE_MODE_SELECTIVE) {
      // The products are stored; attention and the operations on single elements are computed again.
      times.recompute = work_.attention_flops * rows_ / tensor_ / rate_ + pool_.block_overhead_s;
    }
    return times;
  }

  PassTimes HeadTimes() const {
    PassTimes times;
    times.forward = ForwardSeconds(work_.head_flops, work_.head_parameters);
    times.backward = 2 * times.forward;
    if (layout_.tensor > 1) times.backward_tensor = TensorAllReduce();
    return times;
  }

  // Operations between ranks that run next to computation.
  struct Overlap {
    double times = 1;    // in a step
    double seconds = 0;  // each time
    double hiding = 0;   // seconds of computation that hide it
    double tail = 0;     // the part of `seconds` at an end, where nothing is computed
  };

  void Add(const Overlap& overlap) {
    const double seconds = overlap.seconds;
    const double exposed =
        work_.overlaps ? std::max(seconds - overlap.hiding, std::min(overlap.tail, seconds)) : seconds;
    cost_.communication += overlap.times * exposed;
    cost_.hidden += overlap.times * (seconds - exposed);
  }

  // `times` passes through the whole model.
  void AddPasses(double times) {
    const double layers = static_cast<double>(work_.layers);
    cost_.compute += times * (layers * (block_.forward + block_.backward) + head_.forward + head_.backward);
    cost_.recompute += times * layers * block_.recompute;
    cost_.communication += times * (layers * (block_.forward_tensor + block_.backward_tensor) + head_.forward_tensor +
                                    head_.backward_tensor);
  }

  // The computation alone: what tensor ranks exchange uses the links, too, so it hides nothing.
  double ForwardOfRound() const { return static_cast<double>(work_.layers) * block_.forward + head_.forward; }
  double BackwardOfRound() const {
    return static_cast<double>(work_.layers) * (block_.backward + block_.recompute) + head_.backward;
  }
  double AllParameters() const {
    return static_cast<double>(work_.layers) * work_.block_parameters + work_.root_parameters;
  }

  void AddDataParallel() {
    if (layout_.data_ranks() == 1) return;
    if (ShardsParameters(layout_.data)) return AddShardedParameters();
    const RankGroup group = GroupOf(pool_, layout_.data_ranks(), layout_.tensor);
    const double trained = AllParameters() / tensor_ * work_.trained_share;
    const double gradients = trained * work_.reduce_bytes;
    const bool shards_state = ShardsOptimizerState(layout_.data);
    const double buckets = std::max(1.0, std::ceil(trained / std::max(1.0, work_.bucket_parameters)));
    // The last bucket is reduced after backward.
    const double last_bucket = shards_state ? GatherSeconds(pool_, group, gradients / buckets)
                                            : AllReduceSeconds(pool_, group, gradients / buckets);
    Add({.times = layout_.reduce_every_micro_batch ? rounds_ : 1,
         .seconds = buckets * last_bucket,
         .hiding = BackwardOfRound(),
         .tail = last_bucket});
    if (!shards_state) return;
    // Frozen parameters never change, so they are not gathered.
    const double gather = GatherSeconds(pool_, group, trained * work_.param_bytes / buckets);
    Add({.seconds = buckets * gather, .hiding = ForwardOfRound(), .tail = gather});
  }

  // fsdp and hsdp: each block is gathered while the one before computes, and its gradients are reduced while the next
  // one computes.
  void AddShardedParameters() {
    const uint64_t shard = layout_.shard_ranks();
    const RankGroup shards = GroupOf(pool_, shard, layout_.tensor);
    const RankGroup copies = GroupOf(pool_, layout_.data_ranks() / shard, layout_.tensor * shard);
    const double layers = static_cast<double>(work_.layers);
    const double block = work_.block_parameters / tensor_, root = work_.root_parameters / tensor_;
    const double from_host = layout_.offload || work_.offloads_parameters
                                 ? work_.param_bytes / static_cast<double>(shard) / pool_.host_bytes_per_s
                                 : 0;
    const auto gather = [&](double parameters) {
      return GatherSeconds(pool_, shards, parameters * work_.param_bytes) + parameters * from_host;
    };
    const auto reduce = [&](double parameters) {
      const double bytes = parameters * work_.trained_share * work_.reduce_bytes;
      return GatherSeconds(pool_, shards, bytes) + AllReduceSeconds(pool_, copies, bytes / static_cast<double>(shard));
    };
    const double reductions = layout_.reduce_every_micro_batch ? rounds_ : 1, plain = rounds_ - reductions;
    const double one = gather(block), all = layers * one;
    // Nothing is computed before the first two gathers of a pass, and nothing after the last reduction.
    Add({.times = rounds_, .seconds = gather(root) + all, .hiding = ForwardOfRound(), .tail = gather(root) + one});
    Add({.times = plain, .seconds = all, .hiding = BackwardOfRound(), .tail = one});
    Add({.times = reductions,
         .seconds = all + layers * reduce(block) + reduce(root),
         .hiding = BackwardOfRound(),
         .tail = one + reduce(root)});
  }

  // The blocks of the stages differ by at most one; the first stages have more.
  double BlocksOfStage(uint64_t stage) const {
    const uint64_t chunks = layout_.stages * layout_.chunks_per_rank;
    uint64_t blocks = 0;
    for (uint64_t chunk = stage; chunk < chunks; chunk += layout_.stages) {
      blocks += work_.layers / chunks + (chunk < work_.layers % chunks ? 1 : 0);
    }
    return static_cast<double>(blocks);
  }

  // 1f1b: m micro-batches pass the slowest stage one after another, and one passes all stages. With several chunks for
  // each rank, it passes them in parts, so that the others wait for shorter times.
  void AddPipeline() {
    const double stages = static_cast<double>(layout_.stages), chunks = static_cast<double>(layout_.chunks_per_rank);
    double slowest = 0, sum = 0;
    for (uint64_t stage = 0; stage < layout_.stages; ++stage) {
      double seconds = BlocksOfStage(stage) * (block_.forward_total() + block_.backward_total());
      if (stage + 1 == layout_.stages) seconds += head_.forward_total() + head_.backward_total();
      slowest = std::max(slowest, seconds);
      sum += seconds;
    }
    const double link = LinkSeconds();
    const double steady = std::max(slowest, chunks * link);  // a link carries a micro-batch once for each chunk
    const double idle = (sum - slowest) / chunks;
    const double hops = 2 * ((stages - 1) + (chunks - 1) * stages) * link;
    AddPasses(rounds_ / stages);
    cost_.bubble += rounds_ * (slowest - sum / stages) + idle;
    cost_.communication += rounds_ * (steady - slowest) + hops;
    cost_.hidden += rounds_ * chunks * link;
  }

  // Of one micro-batch between two stages.
  double LinkSeconds() const {
    const uint64_t of_stage = layout_.ranks / layout_.stages;
    const bool on_one_host = layout_.ranks <= pool_.ranks_per_host;
    double bytes = rows_ * work_.width * work_.param_bytes;
    if (layout_.sequence) bytes /= tensor_;
    return SendSeconds(pool_, bytes, on_one_host ? 0 : std::min(of_stage, pool_.ranks_per_host));
  }

  // The gradients of a pipeline are reduced after its last pass, and parameters gathered during the next forward.
  void AddPipelineGradients() {
    if (layout_.data_ranks() == 1) return;
    const RankGroup group = GroupOf(pool_, layout_.data_ranks(), layout_.tensor);
    const double blocks = BlocksOfStage(0) * work_.block_parameters;
    const double all = (blocks + std::max(work_.embedding_parameters, work_.head_parameters)) / tensor_;
    const double trained = all * work_.trained_share, gradients = trained * work_.reduce_bytes;
    if (!ShardsOptimizerState(layout_.data)) {
      cost_.communication += AllReduceSeconds(pool_, group, gradients);
      return;
    }
    cost_.communication += GatherSeconds(pool_, group, gradients);
    const double gather = GatherSeconds(pool_, group, trained * work_.param_bytes);
    Add({.seconds = gather, .hiding = BlocksOfStage(0) * block_.forward});
  }

  void AddUpdate() {
    const double stages = static_cast<double>(layout_.stages);
    double elements = (AllParameters() / stages) / tensor_ * work_.trained_share;
    if (ShardsOptimizerState(layout_.data)) elements /= static_cast<double>(layout_.shard_ranks());
    cost_.update = elements * work_.update_bytes / pool_.memory_bytes_per_s;
    // Offloaded state is copied to the device and back.
    const bool offloads = layout_.offload || work_.offloads_optimizer;
    if (offloads && pool_.device == v1::DEVICE_CUDA) {
      cost_.update = std::max(cost_.update, 2 * elements * work_.state_bytes / pool_.host_bytes_per_s);
    }
  }

  const ModelWork& work_;
  const Pool& pool_;
  const Layout& layout_;
  const double tensor_;
  const double rate_;    // operations per second
  const double rows_;    // of a micro-batch
  const double rounds_;  // micro-batches of each data rank
  const RankGroup tensor_group_;
  const PassTimes block_, head_;
  StepCost cost_;
};

}  // namespace

StepCost CostOfStep(const ModelWork& work, const Pool& pool, const Layout& layout) {
  return StepModel(work, pool, layout).Cost();
}

}  // namespace trainyard::planner
