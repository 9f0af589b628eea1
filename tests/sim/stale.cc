#include "tests/sim/stale.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard::sim {
namespace {

std::string TextOf(const State& state, const JobId& id) {
  auto at = state.jobs.find(id);
  if (at == state.jobs.end()) return "";
  const Job& job = at->second;
  std::string text =
      absl::StrCat(job.record.SerializeAsString(), job.published.SerializeAsString(), job.history.last_sequence());
  for (const Rank& rank : job.ranks)
    absl::StrAppend(&text, rank.record.SerializeAsString(), rank.phase.name(), rank.last_step);
  return text;
}

bool IsOver(const State& state, const v1::TrainerKey& key) {
  auto at = state.jobs.find(JobId(key.job_id()));
  return at == state.jobs.end() || at->second.head().generation() != key.generation() || IsFinal(at->second.state());
}

}  // namespace

std::optional<StaleCheck> StaleCheck::Of(const Event& event, const State& state) {
  StaleCheck check;
  if (const auto* facts = std::get_if<HostFactsReceived>(&event)) {
    bool old_stream = !state.sessions.contains(facts->session);
    check.what_ = old_stream ? "facts of an old stream" : "facts of an old generation";
    for (const v1::Fact& fact : facts->batch.facts()) {
      // An exit frees a slot, even for an ended generation, and so may let this job be placed.
      if (!old_stream && (fact.has_exited() || !IsOver(state, fact.key()))) return std::nullopt;
      JobId job(fact.key().job_id());
      check.before_[job] = TextOf(state, job);
    }
  } else if (const auto* received = std::get_if<RankReportsReceived>(&event)) {
    bool old_stream = !state.sessions.contains(received->session);
    check.what_ = old_stream ? "reports of an old stream" : "reports of an old generation";
    for (const v1::RankReport& report : received->reports.reports()) {
      if (!old_stream && !IsOver(state, report.key())) return std::nullopt;
      JobId job(report.key().job_id());
      check.before_[job] = TextOf(state, job);
    }
  }
  if (check.before_.empty()) return std::nullopt;
  return check;
}

std::string StaleCheck::WhatChanged(const State& state) const {
  for (const auto& [job, text] : before_) {
    if (TextOf(state, job) != text) return absl::StrCat(what_, " changed ", job.value());
  }
  return "";
}

void ForgeCurrent(Event& event, const State& state) {
  auto forge = [&state](v1::TrainerKey* key, SessionId& session) {
    auto job = state.jobs.find(JobId(key->job_id()));
    if (job == state.jobs.end() || key->rank() >= job->second.ranks.size()) return;
    key->set_generation(job->second.head().generation());
    auto host = state.hosts.find(job->second.ranks[key->rank()].host());
    if (host != state.hosts.end()) session = host->second.session;
  };
  if (auto* facts = std::get_if<HostFactsReceived>(&event)) {
    for (v1::Fact& fact : *facts->batch.mutable_facts()) {
      forge(fact.mutable_key(), facts->session);
      fact.set_sequence(1'000'000 + fact.sequence());
    }
  } else if (auto* received = std::get_if<RankReportsReceived>(&event)) {
    for (v1::RankReport& report : *received->reports.mutable_reports()) forge(report.mutable_key(), received->session);
  }
}

}  // namespace trainyard::sim
