// c10d's view of our key-value store: what gloo asks for while it connects the ranks. Values are write-once there, so
// what c10d would change in place (add, compareSet, delete) is refused, and gloo needs none of it.
//
// Thread-safe: a wait holds no lock, and clone() shares nothing with it but the store and the place of its failure.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"

namespace trainyard {

class RendezvousStore final : public c10d::Store {
 public:
  // Does not own `store`. `prefix` goes before every name.
  RendezvousStore(KeyValueStore& store, std::string prefix, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(store), prefix_(std::move(prefix)) {}

  // The first thing that went wrong, here or in a clone; gloo throws it on as text, without its code.
  absl::Status failure() const;

  using c10d::Store::compareSet;
  using c10d::Store::set;

  // What fails is thrown as a RendezvousError, since gloo knows no status.
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& name, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& name) override;
  bool check(const std::vector<std::string>& names) override;
  void wait(const std::vector<std::string>& names) override;
  void wait(const std::vector<std::string>& names, const std::chrono::milliseconds& timeout) override;
  int64_t add(const std::string& name, int64_t value) override;
  bool deleteKey(const std::string& name) override;
  int64_t getNumKeys() override;

 private:
  struct Failure {
    absl::Mutex mu;
    absl::Status status ABSL_GUARDED_BY(mu);
  };

  [[noreturn]] void Fail(absl::Status status);

  KeyValueStore& store_;
  const std::string prefix_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

class RendezvousError : public std::runtime_error {
 public:
  explicit RendezvousError(absl::Status status) : std::runtime_error(status.ToString()), status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace trainyard
