#include "client/goodput_view.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

double ShareOf(double seconds, const v1::Goodput& goodput) {
  return goodput.total_s() > 0 ? seconds / goodput.total_s() : 0;
}

std::vector<std::string> Row(const std::string& name, double seconds, const v1::Goodput& goodput,
                             const std::string& meaning) {
  return {absl::StrCat("  ", name), absl::StrFormat("%.3f s", seconds),
          absl::StrFormat("%.1f %%", 100 * ShareOf(seconds, goodput)), meaning};
}

}  // namespace

std::array<GoodputPart, 8> GoodputParts(const v1::Goodput& goodput) {
  return {{{"queue", "waited for free slots", goodput.queue_s()},
           {"start", "started the first process group", goodput.start_s()},
           {"train", "trained and evaluated, not counting lost steps", goodput.train_s()},
           {"save", "saved checkpoints", goodput.save_s()},
           {"lost", "trained steps that were lost: no checkpoint contained them", goodput.lost_s()},
           {"detect", "made no progress until a failure was detected", goodput.detect_s()},
           {"recover", "stopped a process group or started the next one", goodput.recover_s()},
           {"pause", "were paused", goodput.pause_s()}}};
}

double GoodputShare(const v1::Goodput& goodput) { return ShareOf(goodput.train_s(), goodput); }

std::string GoodputText(const v1::Job& job, int columns) {
  const v1::Goodput& goodput = job.goodput();
  std::string text =
      absl::StrFormat("%s: %s, goodput %.1f %%\n", JobTitle(job), StateName(job.state()), 100 * GoodputShare(goodput));
  std::vector<std::vector<std::string>> rows = {{"  PART", "RANK-SECONDS", "SHARE", "WHAT THE RANKS DID"}};
  double sum = 0;
  for (const GoodputPart& part : GoodputParts(goodput)) {
    rows.push_back(Row(part.name, part.seconds, goodput, part.meaning));
    sum += part.seconds;
  }
  const uint32_t ranks = job.spec().resources().ranks();
  rows.push_back(
      Row("sum", sum, goodput,
          absl::StrFormat("of %.3f rank-seconds: %s%d %s for %s", goodput.total_s(),
                          job.spec().command().has_min_ranks() ? "at most " : "", ranks, ranks == 1 ? "rank" : "ranks",
                          DurationText(absl::Seconds(goodput.total_s() / std::max(ranks, 1u))))));
  return absl::StrCat(text, Table(rows, columns));
}

std::string GoodputJson(const v1::Goodput& goodput) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object(), shares = nlohmann::ordered_json::object();
  double sum = 0;
  for (const GoodputPart& part : GoodputParts(goodput)) {
    parts[part.name] = part.seconds;
    shares[part.name] = ShareOf(part.seconds, goodput);
    sum += part.seconds;
  }
  nlohmann::ordered_json json = {{"total_s", goodput.total_s()},
                                 {"sum_s", sum},
                                 {"goodput", GoodputShare(goodput)},
                                 {"parts_s", parts},
                                 {"shares", shares}};
  return json.dump();
}

}  // namespace trainyard::client
