#include "planner/layout.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "spec/choices.h"
#include "spec/parallel_rules.h"

namespace trainyard::planner {
namespace {

using google::protobuf::FieldDescriptor;

// The keys of `parallel` that a plan always decides.
constexpr int kDecidedFields[] = {
    v1::Parallel::kDataFieldNumber,
    v1::Parallel::kShardFieldNumber,
    v1::Parallel::kReplicateFieldNumber,
    v1::Parallel::kTensorFieldNumber,
    v1::Parallel::kSequenceFieldNumber,
    v1::Parallel::kPipelineFieldNumber,
    v1::Parallel::kRecomputeFieldNumber,
    v1::Parallel::kReduceEveryMicroBatchFieldNumber,
    v1::Parallel::kReshardAfterForwardFieldNumber,
};

bool IsDecidedField(const FieldDescriptor& field) {
  return std::find(std::begin(kDecidedFields), std::end(kDecidedFields), field.number()) != std::end(kDecidedFields);
}

// Whether a plan decides the key, or a map that contains it.
bool IsDecidedKey(absl::string_view key) {
  if (key == "resources.ranks" || key == "train.batch.micro") return true;
  if (!absl::ConsumePrefix(&key, "parallel.")) return false;
  const std::string name(key.substr(0, key.find('.')));
  const FieldDescriptor* field = v1::Parallel::descriptor()->FindFieldByName(name);
  return field != nullptr && IsDecidedField(*field);
}

// Sizes of micro-batches to compare: divisors of `sequences` up to `most`, each about twice the one before.
std::vector<uint64_t> MicroSizes(uint64_t sequences, uint64_t most) {
  std::vector<uint64_t> sizes;
  uint64_t largest = 0;
  for (const uint64_t divisor : DivisorsOf(sequences)) {
    if (divisor > most) break;
    if (sizes.empty() || divisor * 10 >= sizes.back() * 19) sizes.push_back(divisor);
    largest = divisor;
  }
  if (!sizes.empty() && sizes.back() != largest) sizes.push_back(largest);
  return sizes;
}

// The largest number up to `most`, times `unit`, that divides the batch equally; 0 if there is none.
uint64_t MostEqualRanks(uint64_t global, uint64_t most, uint64_t unit) {
  for (uint64_t count = most; count > 0; --count) {
    if (global % (count * unit) == 0) return count * unit;
  }
  return 0;
}

// The numbers of ranks to compare, largest first.
std::set<uint64_t, std::greater<>> RankCounts(const Pool& pool, const JobFacts& job) {
  const uint64_t all = pool.ranks();
  std::set<uint64_t, std::greater<>> counts = {all, pool.ranks_per_host, 1};
  // Half of the ranks, if they fill whole hosts or divide one equally.
  const uint64_t half = all / 2;
  if (half > 0 && (half % pool.ranks_per_host == 0 || pool.ranks_per_host % half == 0)) counts.insert(half);
  // Whole hosts, and ranks of one host.
  for (const uint64_t count : {MostEqualRanks(job.global, pool.hosts, pool.ranks_per_host),
                               MostEqualRanks(job.global, pool.ranks_per_host, 1)}) {
    if (count > 0) counts.insert(count);
  }
  return counts;
}

// What a rank can do with its part of the model to save memory.
struct Saving {
  v1::RecomputeMode recompute = v1::RECOMPUTE_MODE_NONE;
  bool sequence = false;
};

std::vector<Saving> SavingsFor(const Layout& shape) {
  std::vector<Saving> savings;
  for (const v1::RecomputeMode recompute :
       {v1::RECOMPUTE_MODE_NONE, v1::RECOMPUTE_MODE_SELECTIVE, v1::RECOMPUTE_MODE_BLOCKS}) {
    savings.push_back({.recompute = recompute, .sequence = false});
    if (shape.tensor > 1) savings.push_back({.recompute = recompute, .sequence = true});
  }
  return savings;
}

// The strategies of the data ranks. A pipeline gains nothing from the others (model_parallel_rules.cc warns of them).
std::vector<Layout> StrategiesFor(const Pool& pool, const Layout& shape) {
  Layout layout = shape;
  std::vector<Layout> layouts = {layout};  // ddp
  if (shape.data_ranks() == 1) return layouts;
  layout.data = v1::DATA_PARALLEL_ZERO1;
  layouts.push_back(layout);
  if (shape.stages > 1) return layouts;
  for (const v1::DataParallel data : {v1::DATA_PARALLEL_ZERO2, v1::DATA_PARALLEL_FSDP, v1::DATA_PARALLEL_HSDP}) {
    layout.data = data;
    layout.shard = 0;
    if (data == v1::DATA_PARALLEL_HSDP) {
      // Copies of the state within a host each; the other sizes are in between fsdp and this one.
      layout.shard = pool.ranks_per_host / shape.tensor;
      const bool divides = layout.shard > 1 && layout.shard < shape.data_ranks();
      if (!divides || shape.data_ranks() % layout.shard != 0) continue;
    }
    for (const bool every : {false, true}) {
      layout.reduce_every_micro_batch = every;
      layouts.push_back(layout);
    }
  }
  return layouts;
}

void AddVariants(const Pool& pool, const JobFacts& job, LayoutCell& cell) {
  const uint64_t data_ranks = cell.shape.data_ranks(), ranks = cell.shape.ranks;
  const bool is_equal = job.global % data_ranks == 0;
  if (job.global < data_ranks) {
    cell.refusal = absl::StrCat("the global batch has ", Plural(job.global, "sequence"),
                                ", fewer than data ranks; with train.batch.global ", ranks, " or more, each of ", ranks,
                                " ranks can have some");
    return;
  }
  // With unequal shares some ranks wait for others. That can be worth it only if no rank is left out.
  if (!is_equal && ranks != pool.ranks()) {
    cell.refusal = absl::StrCat("the global batch of ", Plural(job.global, "sequence"),
                                " cannot be divided equally; with train.batch.global ",
                                MultiplesAround(job.global, ranks), " it can among ", Plural(ranks, "rank"));
    return;
  }
  const uint64_t share = (job.global + data_ranks - 1) / data_ranks;  // of the rank with the most
  const std::vector<uint64_t> sizes = MicroSizes(is_equal ? share : job.global, share);
  for (const Layout& strategy : StrategiesFor(pool, cell.shape)) {
    for (const Saving& saving : SavingsFor(cell.shape)) {
      for (const uint64_t micro : sizes) {
        Layout layout = strategy;
        layout.recompute = saving.recompute;
        layout.sequence = saving.sequence;
        layout.micro = micro;
        const uint64_t rounds = RoundsOf(layout, job.global);
        if (layout.reduce_every_micro_batch && rounds == 1) continue;  // would have no effect
        cell.variants.push_back(layout);
        // Two chunks for each rank, which the model must have blocks for and the schedule rounds of micro-batches.
        if (layout.stages == 1 || 2 * layout.stages > job.layers) continue;
        if (!is_equal || rounds % layout.stages != 0) continue;
        layout.chunks_per_rank = 2;
        cell.variants.push_back(layout);
      }
    }
  }
}

}  // namespace

void ApplyLayout(const Layout& layout, v1::JobSpec* spec) {
  v1::Parallel& parallel = *spec->mutable_parallel();
  for (const int number : kDecidedFields) {
    parallel.GetReflection()->ClearField(&parallel, v1::Parallel::descriptor()->FindFieldByNumber(number));
  }
  parallel.set_data(layout.data);
  if (layout.shard > 0) parallel.set_shard(static_cast<uint32_t>(layout.shard));
  if (layout.tensor > 1) parallel.set_tensor(static_cast<uint32_t>(layout.tensor));
  if (layout.sequence) parallel.set_sequence(true);
  if (layout.stages > 1) {
    v1::Pipeline& pipeline = *parallel.mutable_pipeline();
    pipeline.set_stages(static_cast<uint32_t>(layout.stages));
    if (layout.chunks_per_rank > 1) {
      pipeline.set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
      pipeline.set_chunks_per_rank(static_cast<uint32_t>(layout.chunks_per_rank));
    }
  }
  if (layout.recompute != v1::RECOMPUTE_MODE_NONE) parallel.mutable_recompute()->set_mode(layout.recompute);
  if (layout.reduce_every_micro_batch) parallel.set_reduce_every_micro_batch(true);
  if (layout.offload) {
    parallel.mutable_offload()->set_optimizer(true);
    if (ShardsParameters(layout.data)) parallel.mutable_offload()->set_parameters(true);
  }
  spec->mutable_resources()->set_ranks(static_cast<uint32_t>(layout.ranks));
  spec->mutable_train()->mutable_batch()->set_micro(static_cast<uint32_t>(layout.micro));
}

void ResetLayout(v1::JobSpec* spec, Positions* positions) {
  if (!spec->has_train()) return;
  const bool has_batch = spec->train().has_batch();  // without it, the job is refused for that reason
  ApplyLayout(Layout(), spec);
  if (!has_batch) spec->mutable_train()->clear_batch();
  for (auto it = positions->begin(); it != positions->end();) {
    it = IsDecidedKey(it->first) ? positions->erase(it) : std::next(it);
  }
}

LayoutKeys LayoutKeysOf(const v1::JobSpec& spec, bool offloads) {
  LayoutKeys keys;
  if (spec.train().batch().has_micro()) keys.replaced.emplace_back("train.batch.micro");
  if (spec.resources().has_ranks()) keys.replaced.emplace_back("resources.ranks");
  if (spec.resources().has_device()) keys.replaced.emplace_back("resources.device");
  const v1::Parallel& parallel = spec.parallel();
  std::vector<const FieldDescriptor*> fields;
  parallel.GetReflection()->ListFields(parallel, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_offload = field->number() == v1::Parallel::kOffloadFieldNumber;
    const bool is_decided = IsDecidedField(*field) || (is_offload && offloads);
    (is_decided ? keys.replaced : keys.kept).push_back(absl::StrCat("parallel.", field->name()));
  }
  return keys;
}

std::string LayoutName(const Layout& layout) {
  std::string name;
  if (layout.ranks == 1) {
    name = "single";
  } else if (layout.data_ranks() > 1) {
    name = EnumName(*v1::DataParallel_descriptor()->FindValueByNumber(layout.data));
    if (layout.shard > 0) absl::StrAppend(&name, " of ", layout.shard);
  }
  const auto add = [&name](absl::string_view text) { absl::StrAppend(&name, name.empty() ? "" : ", ", text); };
  if (layout.stages > 1) {
    add(Plural(layout.stages, "stage"));
    if (layout.chunks_per_rank > 1) add("interleaved");
  }
  if (layout.tensor > 1) add(absl::StrCat("tensor ", layout.tensor));
  if (layout.sequence) add("sequence");
  if (layout.recompute == v1::RECOMPUTE_MODE_BLOCKS) add("recompute blocks");
  if (layout.recompute == v1::RECOMPUTE_MODE_SELECTIVE) add("recompute selective");
  if (layout.reduce_every_micro_batch) add("reduce every micro-batch");
  if (layout.offload) add("offload");
  return name;
}

uint64_t RoundsOf(const Layout& layout, uint64_t global) {
  return DealShapeOf(global, layout.micro, layout.data_ranks()).rounds;
}

std::string BatchName(const Layout& layout, uint64_t global) {
  return absl::StrCat(layout.micro, " x ", RoundsOf(layout, global));
}

std::vector<LayoutCell> EnumerateCells(const Pool& pool, const JobFacts& job) {
  std::vector<LayoutCell> cells;
  for (const uint64_t ranks : RankCounts(pool, job)) {
    for (const uint64_t tensor : DivisorsOf(std::min(ranks, pool.ranks_per_host))) {
      if (ranks % tensor != 0) continue;
      for (const uint64_t stages : DivisorsOf(ranks / tensor)) {
        if (stages > std::min(job.layers, kStagesMax)) break;
        LayoutCell& cell = cells.emplace_back();
        cell.shape.ranks = ranks;
        cell.shape.tensor = tensor;
        cell.shape.stages = stages;
        AddVariants(pool, job, cell);
      }
    }
  }
  return cells;
}

}  // namespace trainyard::planner
