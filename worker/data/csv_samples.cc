#include "worker/data/csv_samples.h"

#include <csv.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/escape.h"
#include "common/plural.h"

namespace trainyard {
namespace {

constexpr size_t kRowProblemsShown = 20;
constexpr size_t kFieldShown = 40;
constexpr size_t kNamesShown = 200;

// Reads the rows of one file after another, and collects what is wrong with them.
class CsvReader {
 public:
  CsvReader(const CsvOptions& options, std::vector<std::string>& names, std::vector<double>& features,
            std::vector<int64_t>& classes)
      : options_(options), names_(names), features_(features), classes_(classes) {}

  void ReadFile(const std::string& path, absl::string_view text) {
    path_ = &path;
    line_ = 0;
    label_column_ = static_cast<size_t>(options_.num_features);
    row_.clear();
    csv_parser parser;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0) return AddProblem("cannot be read: out of memory");
    const bool parsed = csv_parse(&parser, text.data(), text.size(), OnField, OnRow, this) == text.size() &&
                        csv_fini(&parser, OnField, OnRow, this) == 0;
    if (!parsed) {
      ++line_;
      AddProblem(absl::StrCat("is not CSV: ", csv_strerror(csv_error(&parser))));
    }
    csv_free(&parser);
  }

  // Returns the problems, one per line; empty if there are none.
  std::string Problems() const {
    if (num_problems_ == 0) return "";
    return absl::StrCat(absl::StrJoin(problems_, "\n"), AndMore(problems_.size(), num_problems_, "\n", "problem"));
  }

 private:
  static void OnField(void* data, size_t size, void* self) {
    static_cast<CsvReader*>(self)->row_.emplace_back(static_cast<const char*>(data), size);
  }
  static void OnRow(int /*terminator*/, void* self) { static_cast<CsvReader*>(self)->EndRow(); }

  void EndRow() {
    ++line_;
    const std::vector<std::string> row = std::move(row_);
    row_.clear();
    if (line_ == 1 && IsHeader(row)) return ReadHeader(row);
    if (line_ == 1 && !options_.label.empty()) {
      return AddProblem(absl::StrCat("has no names of columns, but train.data.fields.label is '", options_.label, "'"));
    }
    if (row.size() != static_cast<size_t>(options_.num_features) + 1) return AddWrongWidth(row.size());
    AddRow(row);
  }

  void AddWrongWidth(size_t num_columns) {
    AddProblem(absl::StrCat("has ", Plural(num_columns, "column"), "; expected ", options_.num_features + 1, ": ",
                            options_.num_features, " features (train.model.context) and the class"));
  }

  static bool IsHeader(const std::vector<std::string>& row) {
    double ignored;
    return std::none_of(row.begin(), row.end(),
                        [&](const std::string& field) { return absl::SimpleAtod(field, &ignored); });
  }

  void ReadHeader(const std::vector<std::string>& names) {
    if (names.size() != static_cast<size_t>(options_.num_features) + 1) return AddWrongWidth(names.size());
    if (names_.empty()) names_ = names;
    if (names != names_) {
      return AddProblem(absl::StrCat("names other columns than the first file, or in another order; expected ",
                                     EscapeText(absl::StrJoin(names_, ", ").substr(0, kNamesShown)), "; found ",
                                     EscapeText(absl::StrJoin(names, ", ").substr(0, kNamesShown)),
                                     "; give all files the same names, held-out files too"));
    }
    if (options_.label.empty()) return;
    const auto found = std::find(names.begin(), names.end(), options_.label);
    if (found == names.end()) {
      return AddProblem(absl::StrCat("has no column '", options_.label, "' (train.data.fields.label); its columns: ",
                                     EscapeText(absl::StrJoin(names, ", ").substr(0, kNamesShown))));
    }
    label_column_ = static_cast<size_t>(found - names.begin());
  }

  void AddRow(const std::vector<std::string>& row) {
    std::vector<double> features;
    int64_t label = -1;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string shown = EscapeText(row[column].substr(0, kFieldShown));
      if (column == label_column_) {
        if (absl::SimpleAtoi(row[column], &label) && label >= 0 && label < options_.num_classes) continue;
        return AddProblem(absl::StrCat("column ", column + 1, ": expected a class from 0 to ", options_.num_classes - 1,
                                       " (train.model.vocabulary), found '", shown, "'"));
      }
      double value = 0;
      if (!absl::SimpleAtod(row[column], &value) || !std::isfinite(value)) {
        return AddProblem(absl::StrCat("column ", column + 1, ": expected a finite number, found '", shown, "'"));
      }
      features.push_back(value);
    }
    features_.insert(features_.end(), features.begin(), features.end());
    classes_.push_back(label);
  }

  void AddProblem(absl::string_view text) {
    if (++num_problems_ <= kRowProblemsShown) problems_.push_back(absl::StrCat(*path_, ":", line_, ": ", text));
  }

  const CsvOptions& options_;
  std::vector<std::string>& names_;  // of the columns of the first file that names them
  std::vector<double>& features_;
  std::vector<int64_t>& classes_;
  const std::string* path_ = nullptr;
  int64_t line_ = 0;  // of the row that was read last; quoted line ends do not count
  size_t label_column_ = 0;
  std::vector<std::string> row_;
  std::vector<std::string> problems_;
  size_t num_problems_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CsvSamples>> CsvSamples::Open(const Corpus& corpus, size_t first_file, size_t end_file,
                                                             const CsvOptions& options,
                                                             std::vector<std::string>& names) {
  std::unique_ptr<CsvSamples> samples(new CsvSamples(options));
  CsvReader reader(samples->options_, names, samples->features_, samples->classes_);
  for (size_t file = first_file; file < end_file; ++file) {
    reader.ReadFile(corpus.files()[file].path, corpus.ContentsOf(file));
  }
  if (const std::string problems = reader.Problems(); !problems.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(options.key, ":\n", problems));
  }
  const int64_t num_rows = static_cast<int64_t>(samples->classes_.size());
  const int64_t held_back = static_cast<int64_t>(static_cast<double>(num_rows) * options.validation);
  samples->num_training_ = num_rows - held_back;
  if ((options.trains && samples->num_training_ < 1) || (options.evaluates && held_back < 1)) {
    const std::string rows = Plural(static_cast<size_t>(num_rows), "row");
    return absl::InvalidArgumentError(
        options.trains ? absl::StrCat(options.key, ": has ", rows, ", of which train.data.validation ",
                                      options.validation, " reserves ", held_back,
                                      " for evaluation; training and evaluation each need a row: add rows, or set "
                                      "train.evaluate.every_steps to 0")
                       : absl::StrCat(options.key, ": has ", rows, "; expected at least one"));
  }
  return samples;
}

int64_t CsvSamples::num_samples(DataPart part) const {
  return part == DataPart::kTraining ? num_training_ : static_cast<int64_t>(classes_.size()) - num_training_;
}

void CsvSamples::Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
                      absl::Span<int64_t> /*starts*/) const {
  const size_t row = static_cast<size_t>(sample + (part == DataPart::kTraining ? 0 : num_training_));
  const double* features = features_.data() + row * static_cast<size_t>(options_.num_features);
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = std::bit_cast<int64_t>(features[i]);
  std::fill(targets.begin(), targets.end(), kNoTarget);
  targets[0] = classes_[row];
}

}  // namespace trainyard
