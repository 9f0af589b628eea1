#include "worker/parallel/flat_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr Placement kShard = Placement::kShard;

// Gains and biases are not pulled towards 0.
bool Decays(const at::Tensor& parameter) { return parameter.dim() >= 2; }

}  // namespace

FlatGroup::FlatGroup(const Model& model, std::string name, std::vector<int> parameters, const Placements& placements,
                     Communicator& shard)
    : model_(model),
      name_(std::move(name)),
      placements_(placements),
      rank_(shard.rank()),
      parameters_(std::move(parameters)) {
  c10::NoGradGuard no_grad;
  std::sort(parameters_.begin(), parameters_.end());
  std::vector<int64_t> sizes;
  std::vector<int> order;
  for (int parameter : parameters_) {
    order.push_back(static_cast<int>(sizes.size()));
    sizes.push_back(model.parameters()[parameter].tensor.numel());
  }
  auto first_other = std::stable_partition(order.begin(), order.end(),
                                           [&](int i) { return Decays(model.parameters()[parameters_[i]].tensor); });
  layout_ = LayOut(sizes, order, shard.world_size());
  num_decayed_ = first_other == order.end() ? layout_.total : layout_.offsets[*first_other];
  gaps_ = layout_.Gaps();

  const at::TensorOptions type = model.parameters()[0].tensor.options().requires_grad(false);
  auto own = [&](const at::Tensor& whole) { return whole.narrow(0, rank_ * layout_.shard, layout_.shard); };
  if (placements.parameters == kShard) {
    parameter_shard_ = shard.NewBuffer(layout_.shard, type.dtype().toScalarType()).zero_();
  } else {
    whole_parameters_ = at::zeros({layout_.total}, type);
    parameter_shard_ = own(whole_parameters_);
  }
  if (placements.gradients == kShard) {
    gradient_shard_ = at::zeros({layout_.shard}, type);
  } else {
    whole_gradients_ = at::zeros({layout_.total}, type);
    gradient_shard_ = own(whole_gradients_);
  }
  first_moment_ = at::zeros({layout_.shard}, type);
  second_moment_ = at::zeros({layout_.shard}, type);
}

absl::Status FlatGroup::TakeRankZeros(Communicator& world) {
  c10::NoGradGuard no_grad;
  const bool sharded = placements_.parameters == kShard;
  at::Tensor whole = sharded ? at::zeros({layout_.total}, parameter_shard_.options()) : whole_parameters_;
  for (size_t i = 0; i < parameters_.size(); ++i) View(whole, i).copy_(model_.parameters()[parameters_[i]].tensor);
  RETURN_IF_ERROR(world.Broadcast(whole, /*root=*/0)->Wait()) << "while taking over the parameters of rank 0";
  if (sharded) {
    parameter_shard_.copy_(whole.narrow(0, rank_ * layout_.shard, layout_.shard));
    doors_ = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), whole.nbytes(),
                                                   at::DataPtr(nullptr, whole.device()), /*allocator=*/nullptr,
                                                   /*resizable=*/false);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor parameter = model_.parameters()[parameters_[i]].tensor;
    parameter.set_data(sharded ? NewDoor(layout_.offsets[i], parameter) : View(whole, i));
    if (placements_.gradients != kShard) parameter.mutable_grad() = View(whole_gradients_, i);
  }
  return absl::OkStatus();
}

at::Tensor FlatGroup::NewDoor(int64_t offset, const at::Tensor& like) const {
  at::Tensor door = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(doors_), like.key_set(), like.dtype());
  door.unsafeGetTensorImpl()->set_sizes_contiguous(like.sizes());
  door.unsafeGetTensorImpl()->set_storage_offset(offset);
  return door;
}

void FlatGroup::Open(const at::Tensor& whole) {
  doors_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(whole.mutable_data_ptr(), whole.device()));
}

void FlatGroup::Close() {
  doors_.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, parameter_shard_.device()));
}

at::Tensor FlatGroup::View(const at::Tensor& flat, size_t i) const {
  return flat.narrow(0, layout_.offsets[i], layout_.sizes[i]).view(model_.parameters()[parameters_[i]].tensor.sizes());
}

void FlatGroup::ZeroGaps(const at::Tensor& flat) const {
  for (const ElementRange& gap : gaps_) flat.narrow(0, gap.first, gap.count).zero_();
}

std::vector<AdamW::Range> FlatGroup::OptimizerRanges() const {
  std::vector<AdamW::Range> ranges;
  // All bounds are multiples of kAlignment, so vector code meets no tail whatever the layout.
  const int64_t decayed = std::clamp<int64_t>(num_decayed_ - rank_ * layout_.shard, 0, layout_.shard);
  auto add = [&](int64_t first, int64_t count, bool decays) {
    if (count == 0) return;
    ranges.push_back({.parameters = parameter_shard_.narrow(0, first, count),
                      .gradients = gradient_shard_.narrow(0, first, count),
                      .decays = decays,
                      .exp_avg = first_moment_.narrow(0, first, count),
                      .exp_avg_sq = second_moment_.narrow(0, first, count)});
  };
  add(0, decayed, /*decays=*/true);
  add(decayed, layout_.shard - decayed, /*decays=*/false);
  return ranges;
}

}  // namespace trainyard
