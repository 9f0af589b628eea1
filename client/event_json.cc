#include "client/event_json.h"

#include <nlohmann/json.hpp>

#include "client/exit_code.h"
#include "client/goodput_view.h"
#include "client/job_calls.h"
#include "client/layout_view.h"
#include "common/error_details.h"
#include "spec/job_layout.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

// Replaces bytes that are not UTF-8; the output of a rank may contain any bytes.
std::string Line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

double Seconds(int64_t unix_ms) { return static_cast<double>(unix_ms) / 1e3; }

Json DecisionsJson(const google::protobuf::RepeatedPtrField<v1::ResolvedKey>& decisions) {
  Json list = Json::array();
  for (const v1::ResolvedKey& decision : decisions) {
    list.push_back({{"key", decision.key()}, {"value", decision.value()}, {"reason", decision.reason()}});
  }
  return list;
}

Json CheckpointJson(const v1::CheckpointInfo& checkpoint) {
  return {{"step", checkpoint.step()},
          {"generation", checkpoint.generation()},
          {"path", checkpoint.path()},
          {"manifest_hash", checkpoint.manifest_hash()},
          {"size_bytes", checkpoint.size_bytes()},
          {"recorded_s", Seconds(checkpoint.recorded_unix_ms())},
          {"state", checkpoint.unconfirmed() ? "granted" : "saved"}};
}

// {"parameters": {"bytes": 1, "peak_bytes": 2}, ...}
Json MemoryJson(const google::protobuf::RepeatedPtrField<v1::MemoryUse>& memory) {
  Json kinds = Json::object();
  for (const v1::MemoryUse& use : memory) {
    kinds[use.kind()] = {{"bytes", use.bytes()}, {"peak_bytes", use.peak_bytes()}};
  }
  return kinds;
}

void AddKind(const v1::Event& event, Json* line) {
  switch (event.kind_case()) {
    case v1::Event::kState:
      line->update({{"event", "state"},
                    {"state", StateName(event.state().state())},
                    {"reason", event.state().reason()},
                    {"restarts", event.state().restarts()}});
      break;
    case v1::Event::kStep: {
      const v1::StepReport& step = event.step();
      line->update({{"event", "step"},
                    {"step", step.step()},
                    {"loss", step.has_loss() ? Json(step.loss()) : Json()},
                    {"tokens_per_s", TokensPerSecond(step)},
                    {"tokens", step.tokens()},
                    {"step_s", step.step_s()},
                    {"lr", step.lr()},
                    {"grad_norm", step.grad_norm()},
                    {"compute_s", step.compute_s()},
                    {"exposed_communication_s", step.exposed_communication_s()},
                    {"optimizer_s", step.optimizer_s()}});
      if (step.skipped()) line->update({{"skipped", true}});
      if (step.loss_scale() > 0) line->update({{"loss_scale", step.loss_scale()}});
      if (step.memory_size() > 0) (*line)["memory"] = MemoryJson(step.memory());
      break;
    }
    case v1::Event::kEval:
      line->update({{"event", "eval"},
                    {"step", event.eval().step()},
                    {"loss", event.eval().loss()},
                    {"tokens", event.eval().tokens()},
                    {"seconds", event.eval().seconds()}});
      break;
    case v1::Event::kCheckpoint:
      line->update({{"event", "checkpoint"}});
      line->update(CheckpointJson(event.checkpoint()));
      break;
    case v1::Event::kNotice:
      line->update({{"event", "notice"}, {"level", event.notice().level()}, {"text", event.notice().text()}});
      if (!event.notice().rule().empty()) (*line)["rule"] = event.notice().rule();
      break;
    case v1::Event::kProbe:
      line->update({{"event", "probe"},
                    {"rank", event.probe().rank()},
                    {"host", event.probe().host()},
                    {"matmul_gflops", event.probe().matmul_gflops()},
                    {"all_reduce_latency_s", event.probe().all_reduce_latency_s()},
                    {"all_reduce_bytes_per_s", event.probe().all_reduce_bytes_per_s()}});
      break;
    case v1::Event::KIND_NOT_SET:
      line->update({{"event", "unknown"}});
  }
}

Json WarningsJson(const v1::Job& job) {
  Json warnings = Json::array();
  for (const std::string& warning : job.warnings()) warnings.push_back(warning);
  return warnings;
}

// A value of the spec; null if the spec is hidden.
template <typename Value>
Json OfSpec(const v1::Job& job, const Value& value) {
  return HasHiddenSpec(job) ? Json() : Json(value);
}

Json RanksJson(const v1::Job& job) {
  Json ranks = Json::array();
  const JobLayout layout = LayoutOf(job.spec());
  for (const v1::RankStatus& rank : job.ranks()) {
    ranks.push_back({{"rank", rank.rank()},
                     {"stage", OfSpec(job, layout.StageOf(rank.rank()))},
                     {"data_rank", OfSpec(job, layout.DataRankOf(rank.rank()))},
                     {"tensor_rank", OfSpec(job, layout.TensorRankOf(rank.rank()))},
                     {"host", rank.host()},
                     {"generation", rank.generation()},
                     {"phase", rank.phase()},
                     {"last_step", rank.last_step()},
                     {"last_report_age_s", rank.last_report_age_s()},
                     {"phase_s", rank.phase_s()},
                     {"waits_in", rank.waits_in()},
                     {"compute_s", rank.compute_s()},
                     {"wait_share", rank.wait_share()},
                     {"straggler", rank.straggler()},
                     {"pid", rank.pid()},
                     {"exit", rank.exit()},
                     {"max_rss_bytes", rank.max_rss_bytes()},
                     {"user_s", rank.user_s()},
                     {"system_s", rank.system_s()},
                     {"memory", MemoryJson(rank.memory())}});
  }
  return ranks;
}

}  // namespace

std::string JobLine(const v1::Job& job) {
  const v1::JobSpec& spec = job.spec();
  return Line({{"event", "job"},
               {"id", job.job_id()},
               {"name", spec.name()},
               {"ranks", spec.resources().ranks()},
               {"steps", OfSpec(job, spec.train().steps())},
               {"dir", OfSpec(job, spec.checkpoint().dir())},
               {"decisions", DecisionsJson(job.decisions())},
               {"warnings", WarningsJson(job)}});
}

std::string EventLine(const v1::Event& event) {
  Json line = {{"event", ""}};
  AddKind(event, &line);
  line.update(
      {{"sequence", event.sequence()}, {"generation", event.generation()}, {"time_s", Seconds(event.time_unix_ms())}});
  if (!event.job_id().empty()) line["job"] = event.job_id();
  if (!event.host().empty()) line["host"] = event.host();
  return Line(line);
}

std::string OutputLine(const v1::LogLine& line) {
  return Line({{"event", "output"},
               {"rank", line.rank()},
               {"generation", line.generation()},
               {"stream", line.is_stderr() ? "stderr" : "stdout"},
               {"text", line.text()}});
}

std::string NoticeLine(absl::string_view level, absl::string_view text) {
  return Line({{"event", "notice"}, {"level", std::string(level)}, {"text", std::string(text)}});
}

std::string ErrorLine(absl::string_view text, int exit_code) {
  return Line({{"event", "error"}, {"text", std::string(text)}, {"exit_code", exit_code}});
}

std::string ErrorLine(const absl::Status& status, int exit_code) {
  const absl::optional<google::rpc::ErrorInfo> info = ErrorInfoOf(status);
  Json line = {{"event", "error"}, {"text", std::string(status.message())}, {"exit_code", exit_code}};
  line["code"] = absl::StatusCodeToString(status.code());
  if (info.has_value()) {
    line["reason"] = info->reason();
    line["metadata"] = Json::object();
    for (const auto& [key, value] : info->metadata()) line["metadata"][key] = value;
  }
  const google::rpc::BadRequest invalid = BadRequestOf(status);
  for (const auto& violation : invalid.field_violations()) {
    line["fields"].push_back({{"field", violation.field()}, {"problem", violation.description()}});
  }
  if (const auto resource = ResourceInfoOf(status); resource.has_value()) {
    line["resource"] = {{"type", resource->resource_type()}, {"name", resource->resource_name()}};
  }
  if (const auto delay = RetryDelayOf(status); delay.has_value()) line["retry_after_s"] = absl::ToDoubleSeconds(*delay);
  return Line(line);
}

std::string DoneLine(const v1::Job& job, const RunStats& stats, int exit_code) {
  Json line = {{"event", "done"},
               {"id", job.job_id()},
               {"state", StateName(job.state())},
               {"reason", job.reason()},
               {"exit_code", exit_code},
               {"last_step", job.last_step()},
               {"steps", stats.steps()},
               {"restarts", job.restarts()},
               {"generation", job.generation()},
               {"tokens_per_s", stats.TokensPerSecond()},
               {"dir", OfSpec(job, job.spec().checkpoint().dir())}};
  line["last_loss"] = stats.has_loss() ? Json(stats.last_loss()) : Json();
  line["eval_loss"] = stats.newest_eval().has_value() ? Json(stats.newest_eval()->loss()) : Json();
  const v1::CheckpointInfo* newest = NewestConfirmed(job);
  line["checkpoint"] = newest != nullptr ? Json(newest->path()) : Json();
  return Line(line);
}

std::string DoneWithoutJobLine(absl::string_view job_id, absl::string_view reason, int exit_code) {
  Json line = {{"event", "done"}, {"id", std::string(job_id)}};
  line["state"] = Json();
  line["reason"] = std::string(reason);
  line["exit_code"] = exit_code;
  return Line(line);
}

std::string CheckpointLine(const v1::CheckpointInfo& checkpoint) {
  Json line = {{"event", "checkpoint"}};
  line.update(CheckpointJson(checkpoint));
  return Line(line);
}

std::string JobJson(const v1::Job& job) {
  Json checkpoints = Json::array();
  for (const v1::CheckpointInfo& checkpoint : job.checkpoints()) checkpoints.push_back(CheckpointJson(checkpoint));
  return Line({{"id", job.job_id()},
               {"name", job.spec().name()},
               {"state", StateName(job.state())},
               {"reason", job.reason()},
               {"namespace", OfSpec(job, job.spec().namespace_().empty() ? "default" : job.spec().namespace_())},
               {"priority", job.has_priority() ? Json(job.priority()) : Json()},
               {"preempted_by", job.preempted_by().empty() ? Json() : Json(job.preempted_by())},
               {"preemptions", job.preemptions()},
               {"generation", job.generation()},
               {"restarts", job.restarts()},
               {"planned_restarts", job.planned_restarts()},
               {"unconfirmed", job.unconfirmed()},
               {"unreachable", job.unreachable()},
               {"resource_version", job.resource_version()},
               {"last_step", job.last_step()},
               {"last_loss", job.has_last_loss() ? Json(job.last_loss()) : Json()},
               {"steps", OfSpec(job, job.spec().train().steps())},
               {"dir", OfSpec(job, job.spec().checkpoint().dir())},
               {"spec_digest", job.spec_digest()},
               {"submitted_s", Seconds(job.submitted_unix_ms())},
               {"started_s", Seconds(job.started_unix_ms())},
               {"finished_s", Seconds(job.finished_unix_ms())},
               {"goodput", Json::parse(GoodputJson(job.goodput()))},
               {"layout", LayoutJson(job.spec())},
               {"ranks", RanksJson(job)},
               {"checkpoints", checkpoints},
               {"decisions", DecisionsJson(job.decisions())},
               {"warnings", WarningsJson(job)}});
}

}  // namespace trainyard::client
