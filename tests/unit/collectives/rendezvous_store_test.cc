#include "worker/collectives/rendezvous_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/parity/stores.h"

namespace trainyard {
namespace {

using std::chrono::milliseconds;

std::vector<uint8_t> Bytes(absl::string_view text) { return {text.begin(), text.end()}; }

absl::StatusCode CodeThrownBy(const std::function<void()>& call) {
  try {
    call();
  } catch (const RendezvousError& error) {
    return error.status().code();
  }
  return absl::StatusCode::kOk;
}

class RendezvousStoreTest : public testing::Test {
 protected:
  MemoryStore values_;
  c10::intrusive_ptr<RendezvousStore> store_ =
      c10::make_intrusive<RendezvousStore>(values_, "g1/", milliseconds(20'000));
};

TEST_F(RendezvousStoreTest, WritesUnderItsPrefix) {
  store_->set("address", Bytes("here"));

  EXPECT_EQ(*values_.Get("g1/address", absl::ZeroDuration()), "here");
  EXPECT_EQ(store_->get("address"), Bytes("here"));
}

TEST_F(RendezvousStoreTest, GetWaitsForTheValue) {
  std::thread late([&] { (void)values_.Put("g1/late", "now"); });

  EXPECT_EQ(store_->get("late"), Bytes("now"));
  late.join();
}

TEST_F(RendezvousStoreTest, CloneServesWhileTheOriginalWaits) {
  std::thread waiting([&] { EXPECT_EQ(store_->get("slow"), Bytes("done")); });

  c10::intrusive_ptr<c10d::Store> clone = store_->clone();
  clone->set("quick", Bytes("q"));
  EXPECT_EQ(clone->get("quick"), Bytes("q"));
  clone->set("slow", Bytes("done"));

  waiting.join();
}

TEST_F(RendezvousStoreTest, Get_OfAMissingValue_TimesOut) {
  EXPECT_EQ(CodeThrownBy([&] { store_->wait({"never"}, milliseconds(1)); }), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(RendezvousStoreTest, Get_AtTheEndOfTheGeneration_Aborts) {
  std::thread ending([&] { values_.EndGeneration(); });

  EXPECT_EQ(CodeThrownBy([&] { store_->get("never"); }), absl::StatusCode::kAborted);
  ending.join();
}

TEST_F(RendezvousStoreTest, Check_DoesNotWait) {
  store_->set("a", Bytes("1"));

  EXPECT_TRUE(store_->check({"a"}));
  EXPECT_FALSE(store_->check({"a", "b"}));
}

TEST_F(RendezvousStoreTest, ValuesCannotBeChanged) {
  store_->set("a", Bytes("1"));

  EXPECT_EQ(CodeThrownBy([&] { store_->set("a", Bytes("1")); }), absl::StatusCode::kOk);
  EXPECT_EQ(CodeThrownBy([&] { store_->set("a", Bytes("2")); }), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(CodeThrownBy([&] { store_->add("a", 1); }), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace trainyard
