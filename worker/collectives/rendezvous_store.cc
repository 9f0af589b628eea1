#include "worker/collectives/rendezvous_store.h"

#include "absl/strings/str_cat.h"

namespace trainyard {

c10::intrusive_ptr<c10d::Store> RendezvousStore::clone() {
  auto copy = c10::make_intrusive<RendezvousStore>(store_, prefix_, timeout_);
  copy->failure_ = failure_;
  return copy;
}

absl::Status RendezvousStore::failure() const {
  absl::MutexLock lock(&failure_->mu);
  return failure_->status;
}

void RendezvousStore::Fail(absl::Status status) {
  {
    absl::MutexLock lock(&failure_->mu);
    failure_->status.Update(status);
  }
  throw RendezvousError(std::move(status));
}

void RendezvousStore::set(const std::string& name, const std::vector<uint8_t>& value) {
  absl::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
  absl::Status status = store_.Put(absl::StrCat(prefix_, name), bytes);
  if (!status.ok()) Fail(status);
}

std::vector<uint8_t> RendezvousStore::get(const std::string& name) {
  absl::StatusOr<std::string> value = store_.Get(absl::StrCat(prefix_, name), absl::FromChrono(timeout_));
  if (!value.ok()) Fail(value.status());
  return std::vector<uint8_t>(value->begin(), value->end());
}

bool RendezvousStore::check(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    absl::StatusOr<std::string> value = store_.Get(absl::StrCat(prefix_, name), absl::ZeroDuration());
    if (absl::IsDeadlineExceeded(value.status())) return false;
    if (!value.ok()) Fail(value.status());
  }
  return true;
}

void RendezvousStore::wait(const std::vector<std::string>& names) { wait(names, timeout_); }

void RendezvousStore::wait(const std::vector<std::string>& names, const std::chrono::milliseconds& timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const std::string& name : names) {
    auto left = std::max(deadline - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero());
    absl::StatusOr<std::string> value = store_.Get(absl::StrCat(prefix_, name), absl::FromChrono(left));
    if (!value.ok()) Fail(value.status());
  }
}

int64_t RendezvousStore::add(const std::string& name, int64_t) {
  Fail(absl::UnimplementedError(absl::StrCat("the key-value store is write-once; cannot add to ", name)));
}

bool RendezvousStore::deleteKey(const std::string&) { return false; }

int64_t RendezvousStore::getNumKeys() { Fail(absl::UnimplementedError("the key-value store cannot count its values")); }

}  // namespace trainyard
