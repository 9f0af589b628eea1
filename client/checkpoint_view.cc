#include "client/checkpoint_view.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checkpoint/safetensors.h"
#include "client/text.h"
#include "common/box.h"
#include "common/plural.h"
#include "spec/model_sizes.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kProblemsShown = 20;
constexpr size_t kPiecesShown = 4;
constexpr size_t kTextBytes = 500;

const char* KindName(RunEntry::Kind kind) {
  switch (kind) {
    case RunEntry::Kind::kPartial:
      return "partial";
    case RunEntry::Kind::kOrphan:
      return "orphan";
    case RunEntry::Kind::kCheckpoint:
      break;
  }
  return "checkpoint";
}

const char* StateOf(const InspectedEntry& one) {
  if (!FailedReadOf(one.found.problems).ok()) return "unreadable";
  if (!one.found.problems.empty()) return "damaged";
  return one.verified ? "verified" : "not verified";
}

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json EntryJson(const InspectedEntry& one) {
  Json json = {
      {"event", "checkpoint"},         {"kind", KindName(one.entry.kind)},
      {"name", one.entry.name},        {"path", Printable(one.entry.path, kTextBytes)},
      {"bytes", one.entry.size_bytes}, {"modified_s", absl::ToDoubleSeconds(one.entry.modified - absl::UnixEpoch())}};
  if (one.entry.step.has_value()) json["step"] = *one.entry.step;
  if (one.entry.kind == RunEntry::Kind::kOrphan) return json;
  if (const auto& manifest = one.found.manifest; manifest.has_value()) {
    json.update({{"generation", manifest->generation},
                 {"strategy", manifest->strategy},
                 {"world_size", manifest->world_size},
                 {"files", manifest->files.size() + 1},
                 {"nonfinite", manifest->nonfinite},
                 {"manifest_hash", one.found.manifest_hash},
                 {"best", one.best}});
    const auto& evaluation = manifest->evaluation;
    if (evaluation.has_value() && evaluation->loss.has_value()) json["evaluation_loss"] = *evaluation->loss;
  }
  Json problems = Json::array();
  for (const CheckpointProblem& problem : one.found.problems) {
    problems.push_back(
        {{"file", problem.file}, {"tensor", problem.tensor}, {"expected", problem.expected}, {"found", problem.found}});
  }
  json.update({{"state", StateOf(one)}, {"problems", problems}});
  return json;
}

std::string NoCheckpointText(const InspectedEntry& one, const std::string& holder) {
  const std::string size = BytesText(one.entry.size_bytes);
  if (one.entry.kind == RunEntry::Kind::kOrphan) {
    return absl::StrCat(one.entry.name, ": ", size,
                        ", left by a crash (trainctl checkpoint rm --partials removes it)\n");
  }
  const char* whole = one.found.problems.empty() && one.found.manifest.has_value() ? ", all files present" : "";
  const std::string origin = holder.empty()
                                 ? "left by an interrupted save; the next run of the job completes or removes it"
                                 : absl::StrCat("being written or removed by ", holder, ", or left by a crash");
  return absl::StrCat(one.entry.name, ": not a checkpoint: ", size, whole, ", ", origin, "\n");
}

// Number of tensors and elements of each role.
std::map<std::string, std::pair<uint64_t, uint64_t>> RolesOf(const Manifest& manifest) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> roles;
  for (const ManifestTensor& tensor : manifest.tensors) {
    auto& [tensors, elements] = roles[tensor.role];
    ++tensors;
    elements += CountElements(tensor.shape).value_or(0);
  }
  return roles;
}

std::string ModelText(const std::string& spec_bytes) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(spec_bytes) || !spec.train().has_model()) return "";
  const v1::Model& model = spec.train().model();
  return absl::StrCat(FamilyName(SizesOfModel(model).family), ", ", Plural(model.layers(), "layer"), ", ",
                      Plural(model.heads(), "head"), ", width ", model.width(), ", context ", model.context());
}

// "loss 2.3100; lowest 2.2900 at step 200, 3 evaluations ago".
std::string EvaluationText(const ManifestEvaluation& evaluation) {
  std::string text = evaluation.loss.has_value() ? absl::StrFormat("loss %.4f", *evaluation.loss)
                                                 : std::string("none after this step");
  if (!evaluation.best_loss.has_value()) return text;
  absl::StrAppendFormat(&text, "; lowest %.4f at step %d", *evaluation.best_loss, evaluation.best_step);
  if (evaluation.without_improvement == 0) return text;
  return absl::StrCat(text, ", ", Plural(evaluation.without_improvement, "evaluation"), " ago");
}

std::string TensorLines(const Manifest& manifest, int columns) {
  std::vector<std::vector<std::string>> rows = {{"ROLE", "TENSOR", "DTYPE", "SHAPE", "PIECES"}};
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::vector<std::string> files;
    for (const ManifestPiece& piece : tensor.pieces) {
      if (files.size() == kPiecesShown) break;
      const std::string box = BoxText({.start = piece.start, .size = piece.size}, tensor.shape);
      files.push_back(
          absl::StrCat(piece.file, box.empty() ? "" : " ", box, " [", piece.first_byte, ", ", piece.last_byte, ")"));
    }
    if (tensor.pieces.size() > kPiecesShown) {
      files.push_back(absl::StrCat(AndMore(kPiecesShown, tensor.pieces.size(), ""), " (--json shows all)"));
    }
    rows.push_back({tensor.role, Printable(tensor.name, kTextBytes), tensor.dtype, ShapeText(tensor.shape),
                    Printable(absl::StrJoin(files, "; "), kTextBytes)});
  }
  return Table(rows, columns);
}

}  // namespace

std::string CheckpointTable(const std::vector<InspectedEntry>& all, const std::string& holder, absl::Time now,
                            int columns) {
  std::vector<std::vector<std::string>> rows = {{"STEP", "GENERATION", "STRATEGY", "RANKS", "BYTES", "AGE", "STATE"}};
  std::string other_entries;
  for (const InspectedEntry& one : all) {
    if (one.entry.kind != RunEntry::Kind::kCheckpoint) {
      other_entries += NoCheckpointText(one, holder);
      continue;
    }
    const Manifest manifest = one.found.manifest.value_or(Manifest{});
    const bool known = one.found.manifest.has_value();
    std::string state = StateOf(one);
    if (!one.found.problems.empty()) {
      absl::StrAppend(&state, ": ", Printable(one.found.problems[0].Text(one.entry.name), kTextBytes));
    }
    if (manifest.evaluation.has_value() && manifest.evaluation->loss.has_value()) {
      absl::StrAppendFormat(&state, "; evaluation loss %.4f%s", *manifest.evaluation->loss,
                            one.best ? ", the best" : "");
    }
    if (!manifest.nonfinite.empty()) {
      absl::StrAppend(&state, "; ", manifest.nonfinite[0],
                      " is not finite: no run resumes from this checkpoint automatically");
    }
    rows.push_back({absl::StrCat(one.entry.step.value_or(0)), known ? absl::StrCat(manifest.generation) : "-",
                    known ? Printable(manifest.strategy, 40) : "-", known ? absl::StrCat(manifest.world_size) : "-",
                    BytesText(one.entry.size_bytes), DurationText(now - one.entry.modified), state});
  }
  std::string text = rows.size() > 1 ? Table(rows, columns) : "no checkpoint\n";
  if (!holder.empty()) absl::StrAppend(&text, "in use by ", holder, "\n");
  return text + other_entries;
}

std::string InspectedEntryJson(const InspectedEntry& one) { return Dump(EntryJson(one)); }

bool IsGood(const InspectedEntry& one) {
  return one.found.problems.empty() && one.found.manifest.has_value() && one.found.manifest->nonfinite.empty();
}

std::string VerdictText(const InspectedEntry& one) {
  const std::vector<CheckpointProblem>& problems = one.found.problems;
  if (problems.empty() && !IsGood(one)) {
    return absl::StrCat(one.entry.name, ": NOT FINITE: every byte is intact, but ", one.found.manifest->nonfinite[0],
                        " has infinite or NaN values; runs and export skip this checkpoint\n");
  }
  if (problems.empty()) {
    return absl::StrCat(one.entry.name, ": good: ", one.found.manifest->files.size() + 1, " files, ",
                        BytesText(one.found.size_bytes), "\n");
  }
  const char* verdict = FailedReadOf(problems).ok() ? "DAMAGED" : "CANNOT BE READ, and may be good";
  std::string text = absl::StrCat(one.entry.name, ": ", verdict, ", ", problems.size(),
                                  problems.size() == 1 ? " problem\n" : " problems\n");
  for (size_t i = 0; i < std::min(problems.size(), kProblemsShown); ++i) {
    absl::StrAppend(&text, "  ", Printable(problems[i].Text(one.entry.name), kTextBytes), "\n");
  }
  if (problems.size() > kProblemsShown) {
    absl::StrAppend(&text, AndMore(kProblemsShown, problems.size(), "  "), " (--json shows all)\n");
  }
  return text;
}

std::string ManifestView(const InspectedEntry& one, bool with_tensors, int columns) {
  if (!one.found.manifest.has_value()) return VerdictText(one);
  const Manifest& m = *one.found.manifest;
  std::vector<std::vector<std::string>> rows = {
      {"path", Printable(one.entry.path, kTextBytes)},
      {"state", StateOf(one)},
      {"step", absl::StrCat(m.step)},
      {"job",
       absl::StrCat(Printable(m.job_name, kTextBytes), " (", Printable(m.job_id, 40), "), generation ", m.generation)},
      {"model", ModelText(m.spec)},
      {"layout", absl::StrCat(Printable(m.strategy, 40), ", ", Plural(m.world_size, "rank"))},
      {"optimizer", absl::StrCat(Plural(m.optimizer_updates, "update"),
                                 m.loss_scale.scale > 0 ? absl::StrCat(", loss scale ", m.loss_scale.scale) : "")},
      {"data", absl::StrCat(Plural(m.data.consumed_samples, "sample"), ", epoch ", m.data.epoch, ", of ",
                            Plural(m.data.num_files, "file"), ", ", BytesText(m.data.num_bytes))},
      {"seed", absl::StrCat(m.seed)},
      {"manifest", one.found.manifest_hash}};
  if (m.evaluation.has_value()) rows.push_back({"evaluation", EvaluationText(*m.evaluation)});
  for (const auto& [role, count] : RolesOf(m)) {
    rows.push_back({role, absl::StrCat(Plural(count.first, "tensor"), ", ", Plural(count.second, "element"))});
  }
  for (const ManifestFile& file : m.files) {
    rows.push_back(
        {"file", absl::StrCat(Printable(file.name, kTextBytes), ", ", BytesText(file.bytes), ", hash ", file.hash)});
  }
  std::string text = Table(rows, columns);
  if (!one.found.problems.empty()) text += VerdictText(one);
  return with_tensors ? text + "\n" + TensorLines(m, columns) : text;
}

std::string RemovedJson(const std::vector<std::string>& names, uint64_t bytes) {
  return Dump({{"event", "removed"}, {"names", names}, {"bytes", bytes}});
}

std::string ManifestJson(const InspectedEntry& one, bool with_tensors) {
  Json json = EntryJson(one);
  if (!one.found.manifest.has_value()) return Dump(json);
  // The manifest's text is its specified JSON form.
  Json manifest = Json::parse(ManifestText(*one.found.manifest));
  manifest["hash"] = one.found.manifest_hash;
  if (!with_tensors) manifest.erase("tensors");
  json["manifest"] = std::move(manifest);
  return Dump(json);
}

}  // namespace trainyard::client
