// Shared by tests of durable events: a job on one host, and the events that ListEvents returns.
#pragma once

#include <string>
#include <vector>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {

struct OneHost {
  explicit OneHost(uint32_t ranks = 2) : host(harness, "w1", ranks, 11) {
    host.Attach();
    harness.Submit(MakeSpec(ranks), kJob);
  }
  void RestartCoordinator() {
    host.Disconnect();
    harness.Restart();
  }

  Harness harness;
  FakeHost host;
};

inline v1::ListEventsResponse ListEventsOf(Harness& harness, const std::string& job, uint64_t after = 0,
                                           uint32_t limit = 0) {
  static uint64_t calls = 50'000;
  ListEvents list{CallId(++calls), {}};
  list.request.set_job_id(job);
  list.request.set_after_sequence(after);
  list.request.set_limit(limit);
  harness.Handle(list);
  const Reply& reply = harness.replies[list.call];
  return reply.status.ok() ? std::get<v1::ListEventsResponse>(reply.response) : v1::ListEventsResponse();
}

inline std::vector<std::string> TextsOf(const v1::ListEventsResponse& response) {
  std::vector<std::string> texts;
  for (const v1::Event& event : response.events()) {
    texts.push_back(event.has_notice() ? event.notice().text() : event.ShortDebugString());
  }
  return texts;
}

}  // namespace trainyard
