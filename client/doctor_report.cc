#include "client/doctor_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/hosts_view.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

const char* VerdictName(HostVerdict::Kind kind) {
  switch (kind) {
    case HostVerdict::Kind::kGood:
      return "good";
    case HostVerdict::Kind::kSlowCompute:
      return "slow compute";
    case HostVerdict::Kind::kBadNetwork:
      return "bad network";
    case HostVerdict::Kind::kSuspect:
      return "suspect";
  }
  return "";
}

const char* LevelName(Finding::Level level) {
  switch (level) {
    case Finding::Level::kOk:
      return "ok";
    case Finding::Level::kNote:
      return "note";
    case Finding::Level::kProblem:
      return "problem";
  }
  return "";
}

Json ProbeJson(int round, const ProbeResult& result) {
  return {{"round", round},
          {"hosts", result.hosts},
          {"matmul_gflops", result.gflops},
          {"all_reduce_latency_s", result.latency_s},
          {"all_reduce_bytes_per_s", result.bytes_per_s},
          {"error", result.error}};
}

}  // namespace

bool DoctorReport::AllWell() const {
  return !AnyProblem(findings) && std::all_of(verdicts.begin(), verdicts.end(), [](const HostVerdict& verdict) {
    return verdict.kind == HostVerdict::Kind::kGood;
  });
}

std::string FindingsText(const DoctorReport& report) {
  std::string text;
  for (const Finding& finding : report.findings) {
    const char* mark = finding.level == Finding::Level::kProblem ? "PROBLEM" : LevelName(finding.level);
    absl::StrAppend(&text, absl::StrFormat("%-8s %s: %s\n", mark, finding.subject, finding.text));
  }
  return text;
}

std::string ProbeText(int round, const ProbeResult& result) {
  std::string text = absl::StrCat("round ", round, "  ", absl::StrJoin(result.hosts, " + "), ": ");
  if (!result.error.empty()) return absl::StrCat(text, result.error, "\n");
  absl::StrAppend(&text,
                  absl::StrJoin(result.gflops, " and ",
                                [](std::string* out, double gflops) { absl::StrAppendFormat(out, "%.1f", gflops); }),
                  " GFLOP/s");
  if (result.hosts.size() > 1) {
    absl::StrAppendFormat(&text, ", all-reduce %.1f us for 8 bytes, %.1f MB/s", result.latency_s * 1e6,
                          result.bytes_per_s / 1e6);
  }
  return absl::StrCat(text, "\n");
}

std::string UnfinishedProbeText(bool interrupted, double time_limit_s, const std::string& state) {
  if (interrupted) return absl::StrCat("trainctl was interrupted before the probe ended: ", state);
  return absl::StrFormat("the probe did not end within %.0f s: %s", time_limit_s, state);
}

std::string VerdictsText(const DoctorReport& report) {
  std::string text;
  for (const auto& [host, why] : report.skipped) absl::StrAppend(&text, "skipped  ", host, ": ", why, "\n");
  for (const HostVerdict& verdict : report.verdicts) {
    if (verdict.kind == HostVerdict::Kind::kGood) continue;
    absl::StrAppend(&text, "PROBLEM  ", verdict.host, ": ", VerdictName(verdict.kind), ": ", verdict.text, "\n");
  }
  return absl::StrCat(text, report.AllWell() ? "all is well\n" : "problems were found\n");
}

std::string DoctorJson(const DoctorReport& report) {
  Json findings = Json::array(), probes = Json::array(), verdicts = Json::array(), skipped = Json::array(),
       hosts = Json::array();
  for (const Finding& finding : report.findings) {
    findings.push_back({{"level", LevelName(finding.level)}, {"subject", finding.subject}, {"text", finding.text}});
  }
  for (const ProbeResult& result : report.first) probes.push_back(ProbeJson(1, result));
  for (const ProbeResult& result : report.second) probes.push_back(ProbeJson(2, result));
  for (const HostVerdict& verdict : report.verdicts) {
    verdicts.push_back({{"host", verdict.host}, {"verdict", VerdictName(verdict.kind)}, {"text", verdict.text}});
  }
  for (const auto& [host, why] : report.skipped) skipped.push_back({{"host", host}, {"why", why}});
  for (const v1::HostStatus& host : report.hosts.hosts()) hosts.push_back(Json::parse(HostJson(host)));
  Json json = {{"event", "doctor"},    {"ok", report.AllWell()}, {"findings", findings}, {"probes", probes},
               {"verdicts", verdicts}, {"skipped", skipped},     {"hosts", hosts}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trainyard::client
