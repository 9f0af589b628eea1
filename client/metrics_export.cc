#include "client/metrics_export.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/event_file.h"
#include "client/output.h"
#include "client/plot.h"
#include "client/run_stats.h"
#include "client/text.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr size_t kOutputBlockBytes = 64 << 10;
constexpr double kExactIntegerMax = 9007199254740992;  // 2^53
constexpr size_t kRunNameBytes = 500;
constexpr int kPlotColumnsMax = 160;
constexpr int kPlotRows = 16;
constexpr char kEventFilePrefix[] = "events.out.tfevents.";
// A file in the folder of a run that says where its records came from. TensorBoard ignores it.
constexpr char kOriginFile[] = "trainyard-origin";
constexpr uint64_t kOriginBytes = 8192;

std::string CsvNumber(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (value == std::floor(value) && std::abs(value) < kExactIntegerMax)
    return absl::StrCat(static_cast<int64_t>(value));
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);  // the shortest text with the same value
  return std::string(text, end.ptr);
}

// Prints blocks of whole lines.
class BlockOutput {
 public:
  // Returns false if standard output cannot be written.
  bool Add(absl::string_view line) {
    absl::StrAppend(&block_, line, "\n");
    if (block_.size() >= kOutputBlockBytes) Flush();
    return !OutputFailed();
  }
  void Flush() {
    PrintRaw(block_);
    FlushOutput();
    block_.clear();
  }

 private:
  std::string block_;
};

template <typename LineOf>
absl::Status WriteLines(MetricsSource& source, BlockOutput& output, const LineOf& line_of) {
  const absl::Status status = source.ForEach([&](const MetricsRecord& record) { return output.Add(line_of(record)); });
  output.Flush();
  RETURN_IF_ERROR(OutputStatus());
  return status;
}

// Converts the name of a run to the name of a folder.
std::string FolderName(const std::string& run) {
  std::string name = Printable(run, kRunNameBytes);
  std::replace(name.begin(), name.end(), '/', '_');
  return name.empty() || name == "." || name == ".." ? "run" : name;
}

// Runs of different folders may have the same name. The run that is exported first keeps the folder of events.
absl::Status ClaimFolder(const std::string& run, const MetricsSource& source) {
  const std::string path = JoinPath(run, kOriginFile);
  const std::string origin = absl::StrCat(source.place(), "\n");
  const absl::StatusOr<std::string> known = ReadRegularFile(path, kOriginBytes);
  if (known.ok() && *known == origin) return absl::OkStatus();
  if (!known.ok() && absl::IsNotFound(known.status())) return WriteFileAtomically(path, origin);
  RETURN_IF_ERROR(known.status());
  return absl::AlreadyExistsError(absl::StrCat(run, " has the metrics of another run with the same name, ",
                                               Printable(absl::StripSuffix(*known, "\n"), kRunNameBytes),
                                               ", not those of ", source.place(),
                                               "; give --tensorboard another folder, or remove this one"));
}

Scalars ScalarsOf(const MetricsRecord& record) {
  Scalars scalars;
  for (size_t i = 0; i < kMetricNames.size(); ++i) {
    if (record.has[i])
      scalars.emplace_back(absl::StrCat(record.is_eval ? "eval/" : "train/", kMetricNames[i]), record.values[i]);
  }
  return scalars;
}

// What a plot shows in addition to the curve.
struct PlotFigures {
  RunStats stats;
  uint64_t nonfinite = 0;
  double lowest_loss = std::numeric_limits<double>::infinity();
  double lowest_eval = std::numeric_limits<double>::infinity();
  uint64_t lowest_step = 0, lowest_eval_step = 0;

  void Add(const MetricsRecord& record) {
    const double loss = record.ValueOf("loss");
    v1::Event event;
    if (record.is_eval) {
      event.mutable_eval()->set_step(record.step);
      event.mutable_eval()->set_loss(loss);
      if (loss < lowest_eval) lowest_eval = loss, lowest_eval_step = record.step;
    } else {
      event.mutable_step()->set_step(record.step);
      if (record.Has("loss")) event.mutable_step()->set_loss(loss);
      event.mutable_step()->set_step_s(record.Duration());
      const double tokens = record.ValueOf("tokens");
      if (tokens > 0 && tokens < kExactIntegerMax) event.mutable_step()->set_tokens(static_cast<uint64_t>(tokens));
      if (record.Has("loss") && !std::isfinite(loss)) ++nonfinite;
      if (loss < lowest_loss) lowest_loss = loss, lowest_step = record.step;
    }
    stats.Add(event);
  }
};

std::string FiguresText(const PlotFigures& figures) {
  const RunStats& stats = figures.stats;
  std::vector<std::vector<std::string>> rows;
  if (stats.steps() > 0) {
    rows.push_back({"  steps", absl::StrCat(stats.steps(), ", from ", stats.first_step(), " to ", stats.last_step())});
    std::string loss = LossesText(stats);
    if (figures.lowest_step > 0) {
      absl::StrAppendFormat(&loss, ", lowest %.4f at step %d", figures.lowest_loss, figures.lowest_step);
    }
    if (!loss.empty()) rows.push_back({"  loss", loss});
  }
  if (figures.nonfinite > 0) rows.push_back({"  not finite", Plural(figures.nonfinite, "loss", "losses")});
  if (stats.newest_eval().has_value()) {
    std::string eval = absl::StrFormat("%.4f at step %d", stats.newest_eval()->loss(), stats.newest_eval()->step());
    if (std::isfinite(figures.lowest_eval)) {  // the losses of some evaluations may not be finite
      absl::StrAppendFormat(&eval, ", lowest %.4f at step %d", figures.lowest_eval, figures.lowest_eval_step);
    }
    rows.push_back({"  evaluation", eval});
  }
  if (stats.TokensPerSecond() > 0) rows.push_back({"  tokens/s", Amount(stats.TokensPerSecond())});
  return rows.empty() ? "" : Table(rows);
}

}  // namespace

std::string CsvHeader() { return absl::StrCat("event,step,", absl::StrJoin(kMetricNames, ",")); }

std::string CsvRow(const MetricsRecord& record) {
  std::string row = absl::StrCat(record.is_eval ? "eval," : "step,", record.step);
  for (size_t i = 0; i < kMetricNames.size(); ++i) {
    absl::StrAppend(&row, ",", record.has[i] ? CsvNumber(record.values[i]) : "");
  }
  return row;
}

absl::Status WriteCsv(MetricsSource& source) {
  BlockOutput output;
  output.Add(CsvHeader());
  return WriteLines(source, output, CsvRow);
}

absl::Status WriteJsonLines(MetricsSource& source) {
  BlockOutput output;
  return WriteLines(source, output, [](const MetricsRecord& record) { return JsonForTerminals(record.line); });
}

absl::StatusOr<EventFile> WriteEventFile(MetricsSource& source, const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string run = JoinPath(AbsolutePath(folder, WorkingDirectory()), FolderName(source.name()));
  RETURN_IF_ERROR(MakeFolders(run, 0755));
  RETURN_IF_ERROR(ClaimFolder(run, source));
  EventFile file{.path = JoinPath(run, absl::StrCat(kEventFilePrefix, "0000000000.trainyard"))};
  std::error_code error;
  for (fs::directory_iterator it(run, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!absl::StartsWith(name, kEventFilePrefix)) continue;
    (it->path().string() == file.path ? file.was_replaced : file.has_others) = true;
  }
  std::unique_ptr<EventFileWriter> writer;
  absl::Status written;
  RETURN_IF_ERROR(source.ForEach([&](const MetricsRecord& record) {
    const absl::Time time = record.time.value_or(absl::UnixEpoch());
    if (writer == nullptr) {
      absl::StatusOr<std::unique_ptr<EventFileWriter>> created = EventFileWriter::Create(file.path, time);
      written = created.status();
      if (created.ok()) writer = *std::move(created);
    }
    if (written.ok()) written = writer->Add(time, record.step, ScalarsOf(record));
    return written.ok();
  }));
  RETURN_IF_ERROR(written);
  if (writer == nullptr) return file;  // there are no records
  RETURN_IF_ERROR(writer->Commit());
  return file;
}

absl::StatusOr<std::string> PlotText(MetricsSource& source, const TerminalTraits& traits) {
  PlotFigures figures;
  RETURN_IF_ERROR(source.ForEach([&](const MetricsRecord& record) {
    figures.Add(record);
    return true;
  }));
  const std::string curve =
      Plot(figures.stats.curve(),
           {.columns = std::min(traits.columns - 1, kPlotColumnsMax), .rows = kPlotRows, .unicode = traits.unicode});
  return absl::StrCat("loss of ", Printable(source.name(), kRunNameBytes), "\n",
                      curve.empty() ? "  no curve: fewer than two steps with a finite loss\n" : curve,
                      FiguresText(figures));
}

}  // namespace trainyard::client
