#include "worker/collectives/place_chain.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "common/status_macros.h"
#include "worker/collectives/rank_sum.h"

namespace trainyard {
namespace {

struct Piece {
  int64_t first, count;
  int owner;  // the place that gets the result, if not all do
};

// One sum, from start to end.
class Sum {
 public:
  // `sums` and `results` have room for one contribution, in SumType and in the summed type.
  Sum(PeerCommunicator& across, bool is_for_all, const at::Tensor& out, const at::Tensor& raw, const at::Tensor& sums,
      const at::Tensor& results)
      : across_(across), is_for_all_(is_for_all), out_(out), raw_(raw), sums_(sums), results_(results) {}

  absl::Status Run(int64_t piece_elements) {
    Cut(piece_elements);
    Expect();
    // The result returns to place `here` two steps later for each place after it.
    const size_t lag = 2 * static_cast<size_t>(last_ - here_);
    for (size_t turn = 0; turn < pieces_.size() + lag; ++turn) {
      if (turn < pieces_.size()) {
        RETURN_IF_ERROR(Add(turn));
      }
      if (is_for_all_ && here_ < last_ && turn >= lag) {
        RETURN_IF_ERROR(ReceiveResult(turn - lag));
      }
    }
    for (auto& started : {&returns_, &sends_}) {
      for (const std::unique_ptr<Collective>& each : *started) RETURN_IF_ERROR(each->Wait());
    }
    return absl::OkStatus();
  }

 private:
  void Cut(int64_t piece_elements) {
    const int64_t owners = is_for_all_ ? 1 : last_ + 1, part = sums_.numel() / owners;
    for (int64_t owner = 0; owner < owners; ++owner) {
      for (int64_t start = 0; start < part; start += piece_elements) {
        pieces_.push_back({.first = owner * part + start,
                           .count = std::min(piece_elements, part - start),
                           .owner = static_cast<int>(owner)});
      }
    }
  }

  // Starts all receives in advance, so that no peer waits for this place.
  void Expect() {
    for (const Piece& piece : pieces_) {
      if (here_ > 0) arrivals_.push_back(across_.ReceiveFrom(At(sums_, piece), here_ - 1));
      if (here_ == last_) continue;
      if (is_for_all_) returns_.push_back(across_.ReceiveFrom(ResultFor(piece), here_ + 1));
      if (!is_for_all_ && piece.owner == here_) returns_.push_back(across_.ReceiveFrom(ResultFor(piece), last_));
    }
  }

  absl::Status Add(size_t number) {
    const Piece& piece = pieces_[number];
    if (here_ > 0) {
      RETURN_IF_ERROR(arrivals_[number]->Wait());
    }
    const bool ends = here_ == last_;
    const at::Tensor so_far = At(sums_, piece), to = ends ? ResultFor(piece) : so_far;
    std::vector<const std::byte*> parts;
    for (int64_t start = 0; start < raw_.numel(); start += sums_.numel()) {
      parts.push_back(static_cast<const std::byte*>(raw_.narrow(0, start + piece.first, piece.count).const_data_ptr()));
    }
    ContinueSum({.type = raw_.scalar_type(),
                 .before = here_ > 0 ? static_cast<const std::byte*>(so_far.const_data_ptr()) : nullptr,
                 .parts = parts.data(),
                 .num_parts = static_cast<int>(parts.size()),
                 .ends = ends},
                static_cast<std::byte*>(to.data_ptr()), piece.count);
    const int next = !ends ? here_ + 1 : is_for_all_ ? here_ - 1 : piece.owner;
    if (next != here_) sends_.push_back(across_.SendTo(to, next));
    return absl::OkStatus();
  }

  absl::Status ReceiveResult(size_t number) {
    RETURN_IF_ERROR(returns_[number]->Wait());
    if (here_ > 0) sends_.push_back(across_.SendTo(ResultFor(pieces_[number]), here_ - 1));
    return absl::OkStatus();
  }

  static at::Tensor At(const at::Tensor& tensor, const Piece& piece) {
    return tensor.narrow(0, piece.first, piece.count);
  }
  at::Tensor ResultFor(const Piece& piece) const {
    if (is_for_all_) return At(out_, piece);
    if (piece.owner != here_) return At(results_, piece);
    return out_.narrow(0, piece.first - here_ * out_.numel(), piece.count);
  }

  PeerCommunicator& across_;
  const bool is_for_all_;
  const at::Tensor out_, raw_, sums_, results_;
  const int here_ = across_.rank(), last_ = across_.world_size() - 1;
  std::vector<Piece> pieces_;
  std::vector<std::unique_ptr<Collective>> arrivals_, returns_, sends_;
};

int64_t PieceElements(size_t bytes, at::ScalarType type) {
  return std::max<int64_t>(1, static_cast<int64_t>(bytes / c10::elementSize(SumType(type))));
}

}  // namespace

absl::Status PlaceChain::AllReduceSum(const at::Tensor& out, const at::Tensor& raw) {
  const at::ScalarType type = raw.scalar_type();
  std::shared_ptr<Scratch> sums = scratch_.Take(out.numel() * static_cast<int64_t>(c10::elementSize(SumType(type))));
  RETURN_IF_ERROR(
      Sum(across_, /*is_for_all=*/true, out.view(-1), raw.view(-1), sums->As(SumType(type), out.numel()), {})
          .Run(PieceElements(piece_bytes_, type)));
  sums->is_over = true;
  return absl::OkStatus();
}

absl::Status PlaceChain::ReduceScatterSum(const at::Tensor& out, const at::Tensor& raw) {
  const at::ScalarType type = raw.scalar_type();
  const int64_t size = out.numel() * across_.world_size();
  std::shared_ptr<Scratch> sums = scratch_.Take(size * static_cast<int64_t>(c10::elementSize(SumType(type))));
  std::shared_ptr<Scratch> results = scratch_.Take(size * static_cast<int64_t>(c10::elementSize(type)));
  RETURN_IF_ERROR(Sum(across_, /*is_for_all=*/false, out.view(-1), raw.view(-1), sums->As(SumType(type), size),
                      results->As(type, size))
                      .Run(PieceElements(piece_bytes_, type)));
  sums->is_over = results->is_over = true;
  return absl::OkStatus();
}

}  // namespace trainyard
