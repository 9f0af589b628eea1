// Labelled rows of CSV files, for a classifier (models/mlp_description.h). A row has one number per feature and the
// number of its class, in any column. A first line in which no field is a number names the columns.
//
// A sample is one row: `inputs` holds the bits of the features as doubles, because batches hold only integers, and
// `targets` the class, followed by kNoTarget. All rows are held in memory. The last share of the rows of all files is
// reserved for evaluation.
//
// Immutable, so thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/corpus.h"
#include "worker/data/sample_source.h"

namespace trainyard {

struct CsvOptions {
  int64_t num_features = 0;
  int64_t num_classes = 0;
  std::string label = {};              // the name of the column with the class; empty: the last column
  double validation = 0;               // share of the rows, from the end
  bool trains = true;                  // the training part must hold a row
  bool evaluates = false;              // the validation part must hold a row
  std::string key = "train.data.csv";  // named in errors
};

class CsvSamples final : public SampleSource {
 public:
  // Reads files [first_file, end_file) of the corpus. Fails with InvalidArgument, which lists the first problems with
  // file and line: a row with another number of columns, a field that is not a finite number, a class out of range,
  // names of columns that differ between files; or too few rows. `names`: those of the columns of the first file that
  // names them; empty until there is one. All samples of a job, held-out ones too, share `names`, because a model that
  // trains on columns in one order can use them in no other.
  static absl::StatusOr<std::unique_ptr<CsvSamples>> Open(const Corpus& corpus, size_t first_file, size_t end_file,
                                                          const CsvOptions& options, std::vector<std::string>& names);

  int64_t length() const override { return options_.num_features; }
  int64_t num_samples(DataPart part) const override;
  bool separates_documents() const override { return false; }
  void Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
            absl::Span<int64_t> starts) const override;
  int64_t LossTokens(DataPart, int64_t) const override { return 1; }

 private:
  explicit CsvSamples(const CsvOptions& options) : options_(options) {}

  const CsvOptions options_;
  std::vector<double> features_;  // of one row after another
  std::vector<int64_t> classes_;
  int64_t num_training_ = 0;
};

}  // namespace trainyard
