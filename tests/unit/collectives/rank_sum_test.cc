// Every transport adds in the order of the ranks: its sums must have the same bits as those of a plain loop over ranks.
#include "worker/collectives/rank_sum.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/collectives/transports.h"

namespace trainyard {
namespace {

// 1'003 sums of 256 + 1 + 1, which would be 256 if they were rounded to bf16 after each addition.
TEST(SumInRankOrder, Rounds16BitSumsOnce) {
  const int64_t size = 1'003;
  at::Tensor a = at::full({size}, 256, at::kBFloat16), b = at::full({size}, 1, at::kBFloat16), c = b.clone();
  auto bytes = [](const at::Tensor& t) { return static_cast<std::byte*>(t.data_ptr()); };
  const std::byte* parts[] = {bytes(a), bytes(b), bytes(c)};
  ASSERT_TRUE(SumInRankOrder(at::kBFloat16, parts, 3, bytes(a), size));  // the output is one of the inputs
  EXPECT_TRUE(a.eq(258).all().item<bool>());
  EXPECT_FALSE(SumInRankOrder(at::kBool, parts, 3, bytes(a), 0));
}

// The contribution of `rank` to a sum whose bits depend on the order: values of both signs and many magnitudes.
at::Tensor Contribution(int64_t size, int64_t rank, at::ScalarType type) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(1000 + rank));
  at::Tensor numbers = at::empty({size}, at::kDouble).normal_(0, 1, generator);
  return numbers.mul(at::empty({size}, at::kDouble).normal_(0, 2, generator).exp2_()).to(type);
}

absl::Status SumInOneOrder(Communicator& comm, at::ScalarType type, int64_t part) {
  const int world = comm.world_size(), rank = comm.rank();
  const int64_t size = part * world;
  std::vector<at::Tensor> all;
  std::vector<const std::byte*> parts;
  for (int r = 0; r < world; ++r) {
    all.push_back(Contribution(size, r, type));
    parts.push_back(static_cast<const std::byte*>(all.back().const_data_ptr()));
  }
  at::Tensor expected = at::empty({size}, type), mine = all[static_cast<size_t>(rank)];
  SumInRankOrder(type, parts.data(), world, static_cast<std::byte*>(expected.data_ptr()), size);
  const std::string what = absl::StrCat(c10::toString(type), " of ", size);

  at::Tensor out = at::empty({part}, type), several = mine.clone(), reduced = mine.clone();
  RETURN_IF_ERROR(comm.ReduceScatterSum(out, mine)->Wait()) << what;
  RETURN_IF_ERROR(Expect(out.equal(expected.narrow(0, rank * part, part)), absl::StrCat("reduce-scatter ", what)));
  // Two operations at the same time; the second is waited for first.
  auto first = comm.AllReduceSum(several), second = comm.AllReduceSum(reduced);
  RETURN_IF_ERROR(second->Wait()) << what;
  RETURN_IF_ERROR(first->Wait()) << what;
  RETURN_IF_ERROR(Expect(several.equal(expected) && reduced.equal(expected), absl::StrCat("all-reduce ", what)));
  return absl::OkStatus();
}

class SumOrder : public Transports {};
INSTANTIATE_TEST_SUITE_P(Transports, SumOrder,
                         testing::Values(TransportCase{Transport::kShared, 2}, TransportCase{Transport::kShared, 3},
                                         TransportCase{Transport::kShared, 5}, TransportCase{Transport::kGloo, 2},
                                         TransportCase{Transport::kGloo, 3}, TransportCase{Transport::kGloo, 5},
                                         TransportCase{Transport::kHostwise, 4}, TransportCase{Transport::kHostwise, 6},
                                         TransportCase{Transport::kGloo, 3, DevicePath::kStaged}),
                         [](const testing::TestParamInfo<TransportCase>& info) { return NameOf(info.param); });

TEST_P(SumOrder, IsRankOrderOnEveryTransport) {
  EXPECT_EQ(RunSharded([](int, MeshGroups& groups) -> absl::Status {
              for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
                // Gloo sends these sizes in one message or two halves; hosts exchange them in one piece or several.
                for (int64_t part : {1, 7, 1'003, 20'011}) {
                  RETURN_IF_ERROR(SumInOneOrder(*groups.shard, type, part));
                }
              }
              return absl::OkStatus();
            }),
            absl::OkStatus());
}

}  // namespace
}  // namespace trainyard
