#include "worker/parallel/offload.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/memory_cgroup.h"
#include "worker/parallel/shard_layout.h"

namespace trainyard {
namespace {

// Returns a part of `range`. AdamW updates each element independently, so cutting a range changes no value.
AdamW::Range PartOf(const AdamW::Range& range, int64_t first, int64_t count) {
  auto narrow = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.narrow(0, first, count) : tensor; };
  AdamW::Range part{.parameters = narrow(range.parameters),
                    .gradients = narrow(range.gradients),
                    .decays = range.decays,
                    .exp_avg = narrow(range.exp_avg),
                    .exp_avg_sq = narrow(range.exp_avg_sq),
                    .weights = narrow(range.weights)};
  for (const AdamW::Span& span : range.spans) {
    const int64_t begin = std::max(first, span.offset);
    const int64_t end = std::min(first + count, span.offset + span.count);
    if (begin >= end) continue;
    part.spans.push_back({.offset = begin - first,
                          .count = end - begin,
                          .parameter = span.parameter,
                          .first_element = span.first_element + begin - span.offset,
                          .runs = span.runs});
  }
  return part;
}

// Copies on the CPU with memcpy, because at::copy_ would start threads of its own.
void Copy(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_cpu() && to.is_cpu()) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  } else {
    c10::NoGradGuard no_grad;
    to.copy_(from);
  }
}

// Returns whether the weights have the type of the masters, so that the weights are exact copies of the masters, even
// with stochastic rounding.
bool WeightsEqualMasters(const AdamW::Range& range) {
  return range.weights.defined() && range.weights.scalar_type() == range.parameters.scalar_type();
}

}  // namespace

at::TensorOptions HostMemoryOf(at::Device device) {
  return at::TensorOptions().device(at::kCPU).pinned_memory(device.is_cuda());
}

std::vector<AdamW::Range> CutIntoTiles(const std::vector<AdamW::Range>& ranges, int64_t tile_elements) {
  const int64_t tile = std::max(tile_elements / kAlignment, int64_t{1}) * kAlignment;
  std::vector<AdamW::Range> tiles;
  for (const AdamW::Range& range : ranges) {
    const int64_t size = range.parameters.numel();
    if (size <= tile) {
      tiles.push_back(range);
      continue;
    }
    for (int64_t first = 0; first < size; first += tile) {
      tiles.push_back(PartOf(range, first, std::min(tile, size - first)));
    }
  }
  return tiles;
}

int64_t OffloadedTile(int64_t tile_elements, int64_t all_elements) {
  return std::min(tile_elements, std::max(all_elements / 8, int64_t{1}));
}

TiledUpdate::TiledUpdate(AdamW& optimizer, const HostTensors& host, Ledger* ledger)
    : optimizer_(optimizer), host_(host) {
  int64_t longest = 0;
  for (const AdamW::Range& range : optimizer.ranges()) longest = std::max(longest, range.parameters.numel());
  for (Buffer& buffer : buffers_) {
    if (optimizer.ranges().empty()) break;
    const AdamW::Range& like = optimizer.ranges()[0];
    auto make = [&](bool is_needed, const at::Tensor& of, TrackedMemory& use) {
      if (!is_needed || !of.defined()) return at::Tensor();
      const auto options = at::TensorOptions().dtype(of.scalar_type()).device(like.gradients.device());
      return TrackTensor(ledger, MemoryKind::kBuffers, use, [&] { return at::empty({longest}, options); });
    };
    buffer.parameters = make(host.parameters, like.parameters, buffer.uses[0]);
    buffer.exp_avg = make(host.moments, like.exp_avg, buffer.uses[1]);
    buffer.exp_avg_sq = make(host.moments, like.exp_avg_sq, buffer.uses[2]);
    buffer.weights = make(host.weights && !WeightsEqualMasters(like), like.weights, buffer.uses[3]);
  }
  if (const auto& ranges = optimizer.ranges(); !ranges.empty() && !ranges[0].gradients.is_cpu()) {
    const at::Device device = ranges[0].gradients.device();
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  copy_thread_ = std::thread([this] { RunCopies(); });
}

TiledUpdate::~TiledUpdate() {
  {
    absl::MutexLock lock(&mu_);
    stop_requested_ = true;
  }
  copy_thread_.join();
}

// There are two buffers. While a tile is updated in one of them, the helper thread writes the previous tile back from
// the other and fetches the next tile into it.
void TiledUpdate::Step(double lr, double gradient_scale) {
  const size_t num_tiles = optimizer_.ranges().size();
  optimizer_.BeginStep();
  const uint64_t queued_before = num_queued_;
  for (size_t tile = 0; tile < std::min<size_t>(num_tiles, 2); ++tile) QueueCopy([this, tile] { Fetch(tile); });
  for (size_t tile = 0; tile < num_tiles; ++tile) {
    // Waits until this tile is fetched. The queue holds the first two fetches and then, for each tile, its write and
    // the fetch of the tile after the next (none for the last two tiles).
    AwaitCopies(queued_before + (tile < 2 ? tile + 1 : 2 * tile));
    optimizer_.Update(OnDevice(tile), lr, gradient_scale);
    QueueCopy([this, tile] { WriteBack(tile); });
    if (tile + 2 < num_tiles) QueueCopy([this, tile] { Fetch(tile + 2); });
  }
  AwaitCopies(num_queued_);
}

AdamW::Range TiledUpdate::OnDevice(size_t tile) const {
  AdamW::Range range = optimizer_.ranges()[tile];
  const Buffer& buffer = buffers_[tile % 2];
  auto replace = [&](at::Tensor& tensor, const at::Tensor& by) {
    if (by.defined() && tensor.defined()) tensor = by.narrow(0, 0, range.gradients.numel());
  };
  replace(range.parameters, buffer.parameters);
  replace(range.exp_avg, buffer.exp_avg);
  replace(range.exp_avg_sq, buffer.exp_avg_sq);
  replace(range.weights, buffer.weights);
  if (WeightsEqualMasters(range)) range.weights.reset();
  return range;
}

void TiledUpdate::Fetch(size_t tile) {
  const AdamW::Range &from = optimizer_.ranges()[tile], to = OnDevice(tile);
  if (host_.parameters) Copy(from.parameters, to.parameters);
  if (host_.moments) Copy(from.exp_avg, to.exp_avg);
  if (host_.moments) Copy(from.exp_avg_sq, to.exp_avg_sq);
}

void TiledUpdate::WriteBack(size_t tile) {
  const AdamW::Range &to = optimizer_.ranges()[tile], from = OnDevice(tile);
  if (host_.parameters) Copy(from.parameters, to.parameters);
  if (host_.moments) Copy(from.exp_avg, to.exp_avg);
  if (host_.moments) Copy(from.exp_avg_sq, to.exp_avg_sq);
  if (WeightsEqualMasters(to)) {
    Copy(from.parameters, to.weights);
  } else if (host_.weights) {
    Copy(from.weights, to.weights);
  }
}

// The copy waits for the work that was started on the device before it: a tile is written back only after its update,
// and a buffer is filled only after the update that reads its old contents.
std::function<void()> TiledUpdate::OnStream(std::function<void()> copy) const {
  const auto previous_work = std::make_shared<c10::Event>(stream_->device_type());
  previous_work->record(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
  return [stream = *stream_, previous_work, copy = std::move(copy)] {
    const c10::StreamGuard guard(stream);
    previous_work->block(stream);
    copy();
    stream.synchronize();
  };
}

void TiledUpdate::QueueCopy(std::function<void()> copy) {
  if (stream_.has_value()) copy = OnStream(std::move(copy));
  ++num_queued_;
  absl::MutexLock lock(&mu_);
  copies_.push_back(std::move(copy));
}

void TiledUpdate::AwaitCopies(uint64_t count) {
  const auto are_done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return num_done_ >= count; };
  std::exception_ptr error;
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&are_done));
    error = copy_error_;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void TiledUpdate::RunCopies() {
  const auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return stop_requested_ || !copies_.empty(); };
  std::exception_ptr error;
  while (true) {
    std::function<void()> copy;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (copies_.empty()) return;
      copy = std::move(copies_.front());
      copies_.pop_front();
    }
    try {
      if (error == nullptr) copy();
    } catch (...) {  // the loop's thread throws it again
      error = std::current_exception();
    }
    copy = nullptr;  // destroys the captured objects while AwaitCopies still waits
    absl::MutexLock lock(&mu_);
    copy_error_ = error;
    ++num_done_;
  }
}

int64_t HostBytes(const Offload& offload, int64_t elements, const ElementSizes& sizes) {
  return elements *
         ((offload.optimizer ? sizes.master + 2 * sizes.moment : 0) + (offload.parameters ? sizes.weight : 0));
}

absl::Status CheckHostMemory(int64_t bytes_per_rank, int local_ranks, int64_t available_bytes) {
  const int64_t needed = bytes_per_rank * local_ranks;
  if (available_bytes <= 0 || needed <= available_bytes) return absl::OkStatus();
  auto gib = [](int64_t bytes) { return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30)); };
  return absl::FailedPreconditionError(
      absl::StrCat("parallel.offload needs ", gib(needed), " of host memory on this host (", gib(bytes_per_rank),
                   " for each of ", local_ranks, local_ranks == 1 ? " rank" : " ranks", " of this host), but only ",
                   gib(available_bytes), " is available; offload less, or use more hosts"));
}

int64_t AvailableHostBytes(const std::string& proc) {
  std::ifstream in(proc + "/meminfo");
  int64_t bytes = 0;
  for (std::string key; bytes == 0 && in >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && in >> kib) bytes = kib << 10;
  }
  return std::min(bytes, MemoryLeftIn(MemoryCgroupOf("self", proc)).value_or(bytes));
}

}  // namespace trainyard
