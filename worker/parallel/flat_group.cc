#include "worker/parallel/flat_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// The weights of norms, and biases, are not decayed.
bool Decays(const at::Tensor& parameter) { return parameter.dim() >= 2; }

bool ShardsAnything(const StateSharding& sharding) {
  return sharding.parameters == Sharding::kSharded || sharding.gradients == Sharding::kSharded ||
         sharding.optimizer_state == Sharding::kSharded;
}

}  // namespace

at::ScalarType AccumulatorType(const Precision& precision) {
  return c10::elementSize(precision.reduce) < 4 ? at::kFloat : precision.reduce;
}

FlatGroup::FlatGroup(const Model& model, std::string name, std::vector<int> parameters, const StateSharding& sharding,
                     const Precision& precision, Communicator& shard, const Offload& offload, Ledger* ledger,
                     Communicator* data, int unit)
    : model_(model),
      name_(std::move(name)),
      sharding_(sharding),
      precision_(precision),
      offload_(offload),
      device_(model.parameters()[0].tensor.device()),
      rank_(ShardsAnything(sharding) ? shard.rank() : 0),
      unit_(unit),
      parameters_(std::move(parameters)) {
  c10::NoGradGuard no_grad;
  std::sort(parameters_.begin(), parameters_.end());
  std::vector<int64_t> sizes;
  std::vector<int> order;
  for (int parameter : parameters_) {
    order.push_back(static_cast<int>(sizes.size()));
    sizes.push_back(model.parameters()[parameter].tensor.numel());
  }
  trained_ = std::any_of(parameters_.begin(), parameters_.end(),
                         [&](int parameter) { return model.parameters()[parameter].tensor.requires_grad(); });
  const auto all_are = [&](bool PartParameter::*flag) {
    return !model.boxes().empty() && std::all_of(parameters_.begin(), parameters_.end(), [&](int parameter) {
      return model.boxes()[static_cast<size_t>(parameter)].*flag;
    });
  };
  is_replicated_ = all_are(&PartParameter::replicated);
  is_tied_ = all_are(&PartParameter::tied);
  auto decays = [&](int i) { return Decays(model.parameters()[parameters_[i]].tensor); };
  std::stable_partition(order.begin(), order.end(), decays);
  layout_ = MakeShardLayout(sizes, order, ShardsAnything(sharding) ? shard.world_size() : 1);
  const auto first_undecayed = std::find_if_not(order.begin(), order.end(), decays);
  num_decayed_ = first_undecayed == order.end() ? layout_.total : layout_.offsets[*first_undecayed];
  gaps_ = layout_.Gaps();
  Allocate(shard, ledger, data);
}

void FlatGroup::Allocate(Communicator& shard, Ledger* ledger, Communicator* data) {
  auto zeros = [&](MemoryKind kind, TrackedMemory& use, int64_t elements, at::ScalarType type) {
    const auto options = kind == MemoryKind::kHost ? HostMemoryOf(device_) : at::TensorOptions().device(device_);
    return TrackTensor(ledger, kind, use, [&] { return at::zeros({elements}, options.dtype(type)); });
  };
  // Memory that a communicator reads is allocated by the communicator.
  auto zeros_for = [&](Communicator* of, MemoryKind kind, TrackedMemory& use, int64_t elements, at::ScalarType type) {
    if (of == nullptr || of->world_size() == 1) return zeros(kind, use, elements, type);
    return TrackTensor(ledger, kind, use, [&] { return of->NewBuffer(elements, type).zero_(); });
  };
  auto own = [&](const at::Tensor& whole) { return whole.narrow(0, rank_ * layout_.shard, layout_.shard); };
  if (sharding_.parameters == Sharding::kSharded) {
    weights_ = offload_.parameters ? zeros(MemoryKind::kHost, parameters_use_, layout_.shard, precision_.param)
                                   : TrackTensor(ledger, MemoryKind::kParameters, parameters_use_, [&] {
                                       return shard.NewBuffer(layout_.shard, precision_.param).zero_();
                                     });
  } else {
    Communicator* gatherer = trained_ ? &shard : nullptr;
    whole_parameters_ = zeros_for(gatherer, MemoryKind::kParameters, parameters_use_, layout_.total, precision_.param);
    weights_ = own(whole_parameters_);
  }
  const MemoryKind state = offload_.optimizer ? MemoryKind::kHost : MemoryKind::kOptimizer;
  parameter_shard_ = keeps_masters() ? zeros(state, masters_use_, layout_.shard, precision_.master) : weights_;
  if (!trained_) return;
  const at::ScalarType sum = AccumulatorType(precision_);
  if (sharding_.gradients == Sharding::kSharded) {
    gradient_shard_ = zeros(MemoryKind::kReserved, gradients_use_, layout_.shard, sum);
  } else {
    Communicator* reducer = shard.world_size() > 1 ? &shard : data;
    whole_gradients_ = zeros_for(reducer, MemoryKind::kGradients, gradients_use_, layout_.total, sum);
    gradient_shard_ = own(whole_gradients_);
  }
  first_moment_ = zeros(state, moment_uses_[0], layout_.shard, precision_.state);
  second_moment_ = zeros(state, moment_uses_[1], layout_.shard, precision_.state);
}

void FlatGroup::SetGradientsInUse(bool in_use) {
  if (sharding_.gradients == Sharding::kSharded)
    gradients_use_.SetKind(in_use ? MemoryKind::kGradients : MemoryKind::kReserved);
}

absl::Status FlatGroup::CopyFromRankZero(Communicator& data) {
  c10::NoGradGuard no_grad;
  if (layout_.total == 0) return absl::OkStatus();
  const bool sharded = sharding_.parameters == Sharding::kSharded;
  const bool has_separate_shard = sharded || keeps_masters();
  at::Tensor whole = has_separate_shard ? at::zeros({layout_.total}, parameter_shard_.options()) : whole_parameters_;
  for (size_t i = 0; data.rank() == 0 && i < parameters_.size(); ++i)
    model_.WriteInitialValues(parameters_[i], View(whole, i));
  RETURN_IF_ERROR(data.Broadcast(whole, /*root=*/0)->Wait()) << "while copying the parameters of rank 0";
  if (has_separate_shard) parameter_shard_.copy_(whole.narrow(0, rank_ * layout_.shard, layout_.shard));
  if (sharded) {
    CopyMastersToWeights();
  } else if (has_separate_shard) {
    whole_parameters_.copy_(whole);
  }
  return absl::OkStatus();
}

absl::Status FlatGroup::CopyFromPeer(Communicator& peers) {
  c10::NoGradGuard no_grad;
  RETURN_IF_ERROR(peers.Broadcast(parameter_shard_, /*root=*/0)->Wait()) << "while copying " << name_;
  if (whole_parameters_.defined() && !parameter_shard_.is_same(whole_parameters_)) {
    RETURN_IF_ERROR(peers.Broadcast(whole_parameters_, /*root=*/0)->Wait()) << "while copying " << name_;
  }
  if (sharding_.parameters == Sharding::kSharded) CopyMastersToWeights();
  return absl::OkStatus();
}

std::vector<at::Tensor> FlatGroup::CountedGradients(bool whole) const {
  const ModelPart& part = model_.part();
  const auto is_counted = [&](int i) {
    if (model_.boxes().empty()) return true;
    const PartParameter& box = model_.boxes()[static_cast<size_t>(parameters_[static_cast<size_t>(i)])];
    return !(box.replicated && part.tensor_rank > 0) && !(box.tied && !part.embeds);
  };
  bool all = true;
  for (size_t i = 0; i < parameters_.size(); ++i) all = all && is_counted(static_cast<int>(i));
  // The padding at the end is left out, because its length depends on the number of shards.
  if (all) return {whole ? whole_gradients_.narrow(0, 0, layout_.used) : gradient_shard_};
  std::vector<at::Tensor> counted;
  for (const int i : layout_.order) {
    if (whole && is_counted(i)) counted.push_back(whole_gradients_.narrow(0, layout_.offsets[i], layout_.sizes[i]));
  }
  if (whole) return counted;
  for (const ShardPiece& piece : layout_.PiecesOf(rank_)) {
    if (is_counted(piece.parameter)) counted.push_back(gradient_shard_.narrow(0, piece.offset, piece.range.count));
  }
  return counted;
}

void FlatGroup::MoveParametersHere() {
  c10::NoGradGuard no_grad;
  if (layout_.total == 0) return;
  const bool sharded = sharding_.parameters == Sharding::kSharded;
  if (sharded) {
    storage_ = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), layout_.total * weights_.element_size(), at::DataPtr(nullptr, device_),
        /*allocator=*/nullptr, /*resizable=*/false);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = model_.parameters()[parameters_[i]].tensor;
    parameter.set_data(sharded ? NewShardedParameter(layout_.offsets[i], parameter) : View(whole_parameters_, i));
  }
}

void FlatGroup::CopyMastersToWeights() {
  if (keeps_masters()) weights_.copy_(parameter_shard_);
}

at::Tensor FlatGroup::NewShardedParameter(int64_t offset, const at::Tensor& like) const {
  at::Tensor parameter =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_), like.key_set(), weights_.dtype());
  parameter.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  parameter.unsafeGetTensorImpl()->set_storage_offset(offset);
  return parameter;
}

void FlatGroup::Open(const at::Tensor& whole) {
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(whole.mutable_data_ptr(), whole.device()));
}

void FlatGroup::Close() { storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, device_)); }

at::Tensor FlatGroup::View(const at::Tensor& flat, size_t i) const {
  return flat.narrow(0, layout_.offsets[i], layout_.sizes[i]).view(model_.parameters()[parameters_[i]].tensor.sizes());
}

void FlatGroup::ZeroGaps(const at::Tensor& flat) const {
  for (const ElementRange& gap : gaps_) flat.narrow(0, gap.first, gap.count).zero_();
}

std::vector<AdamW::Range> FlatGroup::OptimizerRanges() const {
  std::vector<AdamW::Range> ranges;
  if (!trained_) return ranges;
  const int64_t start = rank_ * layout_.shard;
  const int64_t decayed = std::clamp<int64_t>(num_decayed_ - start, 0, layout_.shard);
  auto add = [&](int64_t first, int64_t count, bool decays) {
    if (count == 0) return;
    AdamW::Range range{.parameters = parameter_shard_.narrow(0, first, count),
                       .gradients = gradient_shard_.narrow(0, first, count),
                       .decays = decays,
                       .exp_avg = first_moment_.narrow(0, first, count),
                       .exp_avg_sq = second_moment_.narrow(0, first, count)};
    if (keeps_masters()) range.weights = weights_.narrow(0, first, count);
    if (precision_.rounds_stochastically()) range.spans = SpansIn({first, count});
    ranges.push_back(std::move(range));
  };
  // All bounds are multiples of kAlignment, so vector code has no tail in any layout.
  add(0, decayed, /*decays=*/true);
  add(decayed, layout_.shard - decayed, /*decays=*/false);
  return ranges;
}

// The index of parameters()[i] in the whole model.
int FlatGroup::NumberInModel(int i) const {
  const int index = parameters_[static_cast<size_t>(i)];
  return model_.boxes().empty() ? index : model_.boxes()[static_cast<size_t>(index)].number;
}

// The numbers that the elements of parameters()[i] have in the parameter of the whole model.
ElementRuns FlatGroup::RunsInModel(int i) const {
  if (model_.boxes().empty()) return {};
  const PartParameter& box = model_.boxes()[static_cast<size_t>(parameters_[static_cast<size_t>(i)])];
  const std::vector<int64_t>& shape = model_.description().parameters[static_cast<size_t>(box.number)].shape;
  int64_t inner = 1;  // elements with the same indices in the dimensions up to d
  for (size_t d = shape.size(); d-- > 0;) {
    // A box is narrower than the parameter in at most one dimension (TensorSplit).
    if (box.shape[d] != shape[d]) {
      return {.base = box.start[d] * inner, .length = box.shape[d] * inner, .stride = shape[d] * inner};
    }
    inner *= shape[d];
  }
  return {};
}

// The pieces of parameters in a range of this rank's shard.
std::vector<AdamW::Span> FlatGroup::SpansIn(const ElementRange& range) const {
  std::vector<AdamW::Span> spans;
  for (const ShardPiece& piece : layout_.PiecesOf(rank_)) {
    if (piece.offset < range.first || piece.offset >= range.first + range.count) continue;
    spans.push_back({.offset = piece.offset - range.first,
                     .count = piece.range.count,
                     .parameter = static_cast<uint64_t>(NumberInModel(piece.parameter)),
                     .first_element = piece.range.first,
                     .runs = RunsInModel(piece.parameter)});
  }
  return spans;
}

}  // namespace trainyard
