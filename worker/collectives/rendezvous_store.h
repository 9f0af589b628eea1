// Our key-value store as a c10d::Store, which gloo uses to connect the ranks. Values are write-once, so calls that
// would change a value (add, compareSet, delete) fail; gloo needs none of them.
//
// Thread-safe: a wait holds no lock, and a clone shares only the store and the recorded failure.
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
  // Does not own `store`. `prefix` is prepended to every name.
  RendezvousStore(KeyValueStore& store, std::string prefix, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(store), prefix_(std::move(prefix)) {}

  // The first failure, here or in a clone; gloo rethrows it as text, without the status code.
  absl::Status failure() const;

  using c10d::Store::compareSet;
  using c10d::Store::set;

  // Failures are thrown as RendezvousError, because gloo has no statuses.
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
