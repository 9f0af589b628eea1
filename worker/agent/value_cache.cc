#include "worker/agent/value_cache.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace trainyard::agent {
namespace {

// More than the ranks of a host need: a rank waits for at most one value of each peer at a time.
constexpr size_t kWaitsMax = 65'536;

absl::Status Sealed(const std::string& name) {
  return absl::FailedPreconditionError(absl::StrCat("the group has formed and no rank has put '", name, "'"));
}

}  // namespace

void ValueCache::Admit(const TrainerId& id, const std::string& token) {
  absl::MutexLock lock(&mu_);
  tokens_[id] = token;
  groups_.try_emplace(GroupOf(id));
}

void ValueCache::SetComplete(bool is_complete) {
  absl::MutexLock lock(&mu_);
  is_complete_ = is_complete;
}

absl::Status ValueCache::Check(const TrainerId& id, const std::string& token) const {
  absl::MutexLock lock(&mu_);
  auto at = tokens_.find(id);
  if (at == tokens_.end()) {
    if (!is_complete_) return absl::UnavailableError("the daemon is starting and does not know all its trainers yet");
    return absl::NotFoundError(absl::StrCat("this host has no trainer for ", Describe(id)));
  }
  // A trainer whose launch record could not be read has no token, so no caller can prove to be that trainer.
  if (token.empty() || at->second != token) {
    return absl::PermissionDeniedError(absl::StrCat("the token is not that of ", Describe(id)));
  }
  const Group& group = groups_.at(GroupOf(id));
  return group.over.empty() ? absl::OkStatus() : absl::AbortedError(group.over);
}

template <typename Answer>
ValueCache::EndedWaits ValueCache::RemoveWaits(const Answer& answer) {
  EndedWaits ended;
  for (auto at = waits_.begin(); at != waits_.end();) {
    std::optional<absl::StatusOr<std::string>> result = answer(at->second);
    if (!result.has_value()) {
      ++at;
      continue;
    }
    ended.emplace_back(std::move(at->second.done), *std::move(result));
    at = waits_.erase(at);
  }
  return ended;
}

void ValueCache::CallDone(EndedWaits ended) {
  for (auto& [done, result] : ended) done(std::move(result));
}

void ValueCache::Add(const GroupId& group, const std::string& name, const std::string& value) {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(group);
    if (at == groups_.end() || !at->second.over.empty()) return;
    at->second.values[name] = value;
    ended = RemoveWaits([&](const Wait& wait) -> std::optional<absl::StatusOr<std::string>> {
      if (wait.group != group || wait.name != name) return std::nullopt;
      return value;
    });
  }
  CallDone(std::move(ended));
}

void ValueCache::Seal(const GroupId& group) {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(group);
    if (at == groups_.end()) return;
    at->second.sealed = true;
    ended = RemoveWaits([&](const Wait& wait) -> std::optional<absl::StatusOr<std::string>> {
      if (wait.group != group) return std::nullopt;
      return Sealed(wait.name);
    });
  }
  CallDone(std::move(ended));
}

bool ValueCache::IsSealed(const GroupId& group) const {
  absl::MutexLock lock(&mu_);
  auto at = groups_.find(group);
  return at != groups_.end() && at->second.sealed;
}

bool ValueCache::Holds(const GroupId& group, const std::string& name, const std::string& value) const {
  absl::MutexLock lock(&mu_);
  auto at = groups_.find(group);
  if (at == groups_.end()) return false;
  auto held = at->second.values.find(name);
  return held != at->second.values.end() && held->second == value;
}

void ValueCache::End(const GroupId& group, const std::string& reason) {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(group);
    if (at == groups_.end()) return;
    at->second.over = reason;
    at->second.values.clear();
    ended = RemoveWaits([&](const Wait& wait) -> std::optional<absl::StatusOr<std::string>> {
      if (wait.group != group) return std::nullopt;
      return absl::AbortedError(reason);
    });
    // A limited number of ended groups is remembered, so that late callers receive the reason. Callers of a forgotten
    // group receive only NotFound.
    constexpr size_t kEndedGroupsKept = 64;
    size_t num_ended =
        std::count_if(groups_.begin(), groups_.end(), [](const auto& each) { return !each.second.over.empty(); });
    for (auto each = groups_.begin(); each != groups_.end() && num_ended > kEndedGroupsKept;) {
      const bool forget = !each->second.over.empty() && each->first != group;
      if (forget) {
        std::erase_if(tokens_, [&](const auto& token) { return GroupOf(token.first) == each->first; });
        --num_ended;
      }
      each = forget ? groups_.erase(each) : std::next(each);
    }
  }
  CallDone(std::move(ended));
}

ValueCache::WaitId ValueCache::Get(const GroupId& group, const std::string& name, absl::Time deadline, Done done) {
  absl::StatusOr<std::string> answer;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(group);
    if (at == groups_.end()) {
      answer = absl::AbortedError("the generation is over");
    } else if (!at->second.over.empty()) {
      answer = absl::AbortedError(at->second.over);
    } else if (auto value = at->second.values.find(name); value != at->second.values.end()) {
      answer = value->second;
    } else if (at->second.sealed) {
      answer = Sealed(name);
    } else if (waits_.size() >= kWaitsMax) {
      answer = absl::ResourceExhaustedError(absl::StrCat("at most ", kWaitsMax, " calls may wait for values"));
    } else {
      WaitId wait(++last_wait_);
      waits_[wait] = {group, name, deadline, std::move(done)};
      return wait;
    }
  }
  done(std::move(answer));
  return WaitId();
}

void ValueCache::Cancel(WaitId wait) {
  absl::MutexLock lock(&mu_);
  waits_.erase(wait);
}

void ValueCache::Expire(absl::Time now) {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    ended = RemoveWaits([&](const Wait& wait) -> std::optional<absl::StatusOr<std::string>> {
      if (wait.deadline > now) return std::nullopt;
      return absl::DeadlineExceededError(absl::StrCat("no rank has put '", wait.name, "' in time"));
    });
  }
  CallDone(std::move(ended));
}

absl::Time ValueCache::NextDeadline() const {
  absl::MutexLock lock(&mu_);
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, wait] : waits_) next = std::min(next, wait.deadline);
  return next;
}

}  // namespace trainyard::agent
