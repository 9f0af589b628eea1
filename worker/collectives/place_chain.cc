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
  int owner;  // the place that gets the result of a reduce-scatter
};

// One sum over all places (place_chain.h).
class ChainSum {
 public:
  // `sums` and `results` each have space for one contribution: `sums` in SumType, `results` in the type of the
  // contributions. An all-reduce needs no `results`.
  ChainSum(PeerCommunicator& across, bool is_all_reduce, const at::Tensor& out, const at::Tensor& contributions,
           const at::Tensor& sums, const at::Tensor& results)
      : across_(across),
        is_all_reduce_(is_all_reduce),
        out_(out),
        contributions_(contributions),
        sums_(sums),
        results_(results) {}

  absl::Status Run(int64_t piece_elements) {
    SplitIntoPieces(piece_elements);
    StartReceives();
    // A piece crosses each link between this place and the last one twice: as a sum on the way there, as a result on
    // the way back. Meanwhile, this place adds two further pieces for each link, so that it does not wait.
    const size_t lag = 2 * static_cast<size_t>(last_place_ - place_);
    for (size_t step = 0; step < pieces_.size() + lag; ++step) {
      if (step < pieces_.size()) {
        RETURN_IF_ERROR(AddPiece(step));
      }
      if (is_all_reduce_ && place_ < last_place_ && step >= lag) {
        RETURN_IF_ERROR(ReceiveResult(step - lag));
      }
    }
    for (auto& started : {&returns_, &sends_}) {
      for (const std::unique_ptr<Collective>& each : *started) RETURN_IF_ERROR(each->Wait());
    }
    return absl::OkStatus();
  }

 private:
  void SplitIntoPieces(int64_t piece_elements) {
    const int64_t owners = is_all_reduce_ ? 1 : last_place_ + 1, part = sums_.numel() / owners;
    for (int64_t owner = 0; owner < owners; ++owner) {
      for (int64_t start = 0; start < part; start += piece_elements) {
        pieces_.push_back({.first = owner * part + start,
                           .count = std::min(piece_elements, part - start),
                           .owner = static_cast<int>(owner)});
      }
    }
  }

  // Starts all receives in advance, so that no peer waits for this place.
  void StartReceives() {
    for (const Piece& piece : pieces_) {
      if (place_ > 0) arrivals_.push_back(across_.ReceiveFrom(At(sums_, piece), place_ - 1));
      if (place_ == last_place_) continue;
      if (is_all_reduce_) returns_.push_back(across_.ReceiveFrom(ResultFor(piece), place_ + 1));
      if (!is_all_reduce_ && piece.owner == place_)
        returns_.push_back(across_.ReceiveFrom(ResultFor(piece), last_place_));
    }
  }

  absl::Status AddPiece(size_t number) {
    const Piece& piece = pieces_[number];
    if (place_ > 0) {
      RETURN_IF_ERROR(arrivals_[number]->Wait());
    }
    const bool includes_last_rank = place_ == last_place_;
    const at::Tensor so_far = At(sums_, piece), to = includes_last_rank ? ResultFor(piece) : so_far;
    std::vector<const std::byte*> parts;
    for (int64_t start = 0; start < contributions_.numel(); start += sums_.numel()) {
      parts.push_back(
          static_cast<const std::byte*>(contributions_.narrow(0, start + piece.first, piece.count).const_data_ptr()));
    }
    ContinueSum({.type = contributions_.scalar_type(),
                 .before = place_ > 0 ? static_cast<const std::byte*>(so_far.const_data_ptr()) : nullptr,
                 .parts = parts.data(),
                 .num_parts = static_cast<int>(parts.size()),
                 .includes_last_rank = includes_last_rank},
                static_cast<std::byte*>(to.data_ptr()), piece.count);
    const int next = !includes_last_rank ? place_ + 1 : is_all_reduce_ ? place_ - 1 : piece.owner;
    if (next != place_) sends_.push_back(across_.SendTo(to, next));
    return absl::OkStatus();
  }

  absl::Status ReceiveResult(size_t number) {
    RETURN_IF_ERROR(returns_[number]->Wait());
    if (place_ > 0) sends_.push_back(across_.SendTo(ResultFor(pieces_[number]), place_ - 1));
    return absl::OkStatus();
  }

  static at::Tensor At(const at::Tensor& tensor, const Piece& piece) {
    return tensor.narrow(0, piece.first, piece.count);
  }
  at::Tensor ResultFor(const Piece& piece) const {
    if (is_all_reduce_) return At(out_, piece);
    if (piece.owner != place_) return At(results_, piece);
    return out_.narrow(0, piece.first - place_ * out_.numel(), piece.count);
  }

  PeerCommunicator& across_;
  const bool is_all_reduce_;
  const at::Tensor out_, contributions_, sums_, results_;
  const int place_ = across_.rank(), last_place_ = across_.world_size() - 1;
  std::vector<Piece> pieces_;
  std::vector<std::unique_ptr<Collective>> arrivals_, returns_, sends_;
};

int64_t PieceElements(size_t bytes, at::ScalarType type) {
  return std::max<int64_t>(1, static_cast<int64_t>(bytes / c10::elementSize(SumType(type))));
}

}  // namespace

absl::Status PlaceChain::AllReduceSum(const at::Tensor& out, const at::Tensor& contributions) {
  const at::ScalarType type = contributions.scalar_type();
  std::shared_ptr<Scratch> sums = scratch_.Acquire(out.numel() * static_cast<int64_t>(c10::elementSize(SumType(type))));
  RETURN_IF_ERROR(ChainSum(across_, /*is_all_reduce=*/true, out.view(-1), contributions.view(-1),
                           sums->As(SumType(type), out.numel()), {})
                      .Run(PieceElements(piece_bytes_, type)));
  sums->is_over = true;
  return absl::OkStatus();
}

absl::Status PlaceChain::ReduceScatterSum(const at::Tensor& out, const at::Tensor& contributions) {
  const at::ScalarType type = contributions.scalar_type();
  const int64_t size = out.numel() * across_.world_size();
  std::shared_ptr<Scratch> sums = scratch_.Acquire(size * static_cast<int64_t>(c10::elementSize(SumType(type))));
  std::shared_ptr<Scratch> results = scratch_.Acquire(size * static_cast<int64_t>(c10::elementSize(type)));
  RETURN_IF_ERROR(ChainSum(across_, /*is_all_reduce=*/false, out.view(-1), contributions.view(-1),
                           sums->As(SumType(type), size), results->As(type, size))
                      .Run(PieceElements(piece_bytes_, type)));
  sums->is_over = results->is_over = true;
  return absl::OkStatus();
}

}  // namespace trainyard
