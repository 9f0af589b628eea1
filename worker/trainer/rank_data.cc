#include "worker/trainer/rank_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checkpoint/manifest.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/saving/sentences.h"
#include "worker/trainer/other_data.h"
#include "worker/trainer/restore.h"

namespace trainyard {
namespace {

bool Evaluates(const TrainConfig& config) { return EvaluatesPart(config) || !config.data.held_out.empty(); }

// The sources of a set, each limited to its number of samples in the array that begins at `max_samples`.
std::vector<LimitedSource> Limited(const DataSet& set, const int64_t* max_samples) {
  std::vector<LimitedSource> sources;
  for (const std::unique_ptr<SampleSource>& source : set.sources) {
    sources.push_back({.source = source.get(), .max_samples = *max_samples++});
  }
  return sources;
}

// Where evaluation takes its samples from.
const DataSet& EvaluationSet(const RankData& data) {
  return data.held_out.corpus == nullptr ? data.train : data.held_out;
}

// The numbers of training samples of all sources, then the numbers of evaluation samples.
std::vector<int64_t> CountSamples(const TrainConfig& config, const RankData& data) {
  std::vector<int64_t> counts;
  for (const auto& source : data.train.sources) counts.push_back(source->num_samples(DataPart::kTraining));
  if (config.evaluate_every == 0 || !Evaluates(config)) return counts;
  for (const auto& source : EvaluationSet(data).sources) counts.push_back(source->num_samples(DataPart::kEvaluation));
  return counts;
}

// Uses the first samples of each source, as many as `counts` says.
void MakeBatches(const TrainConfig& config, const std::vector<int64_t>& counts, RankData& data) {
  data.training = std::make_unique<TrainingData>(Limited(data.train, counts.data()), config.data.weights, config.seed);
  const size_t num_sources = data.train.sources.size();
  if (counts.size() == num_sources) return;
  data.evaluation = std::make_unique<EvaluationData>(Limited(EvaluationSet(data), counts.data() + num_sources),
                                                     config.evaluate_batches, config.batch_micro);
}

// "1000 (ranks 0, 1), 900 (rank 2)".
std::string ByRank(const at::Tensor& counts, int64_t column) {
  std::map<int64_t, std::vector<int64_t>, std::greater<>> ranks;
  for (int64_t rank = 0; rank < counts.size(0); ++rank) {
    ranks[counts.const_data_ptr<int64_t>()[rank * counts.size(1) + column]].push_back(rank);
  }
  return absl::StrJoin(ranks, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.first, entry.second.size() == 1 ? " (rank " : " (ranks ",
                    absl::StrJoin(entry.second, ", "), ")");
  });
}

// Why a run whose checkpoint was made with `before` samples of each source cannot continue on this host; empty: it can.
std::string WhyNotEnough(const StartOrder& order, const std::vector<int64_t>& before, const RankData& data) {
  if (before.size() != data.train.sources.size()) {
    return absl::StrCat("the checkpoint was made with samples of ", Plural(before.size(), "source"),
                        ", but the job has ", data.train.sources.size());
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const int64_t now = data.train.sources[i]->num_samples(DataPart::kTraining);
    if (now >= before[i]) continue;
    return absl::StrCat("the checkpoint was made with ", before[i], " samples to train on (", data.train.NameOf(i),
                        "), but host ", order.host, " has ", now);
  }
  return "";
}

// Logs "blend: train.data.text: a.txt has weight 2: 2.41 epochs of 5000 samples in 100 steps" for each source.
void LogEpochs(const TrainConfig& config, const RankData& data, std::ostream& log) {
  const uint64_t samples = config.steps * static_cast<uint64_t>(config.batch_global);
  const auto& weights = config.data.weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    log << absl::StrFormat("blend: %s has weight %g: %.3g epochs of %d samples in %d steps", data.train.NameOf(i),
                           weights[i], data.training->Epochs(i, samples),
                           data.train.sources[i]->num_samples(DataPart::kTraining), config.steps)
        << std::endl;
  }
}

// Collective.
absl::Status Refuse(const StartOrder& order, Communicator& world, Link& link, const RankData& data,
                    absl::Status refusal) {
  const auto content_hash = [&data] { return data.train.corpus->Fingerprint().content_hash; };
  return RefuseDataOrHosts(order, data.checkpoint, content_hash, world, &link, std::move(refusal));
}

// Collective. Every rank counts the targets of all ranks from its own samples. If documents are separate and made of
// bytes, the number of targets in a sample depends on the sizes of the files, so each file must have
// the same size on all ranks.
absl::Status CheckSameDocuments(const StartOrder& order, Communicator& world, Link& link, const RankData& data) {
  const bool is_bytes = data.train.plan == nullptr && order.config.data.csv.empty();
  if (!order.config.data.separate_documents || !is_bytes) return absl::OkStatus();
  std::string documents = DocumentsText(*data.train.corpus);
  if (data.held_out.corpus != nullptr) absl::StrAppend(&documents, "held out\n", DocumentsText(*data.held_out.corpus));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ShareSentences(ManifestHash(documents), world),
                   << "while comparing the data");
  if (std::all_of(all.begin(), all.end(), [&](const std::string& each) { return each == all[0]; })) {
    return absl::OkStatus();
  }
  return Refuse(
      order, world, link, data,
      absl::InvalidArgumentError(
          "train.data.separate_documents: each file is a document, but the ranks see files of different sizes; give "
          "all hosts the same files (train.data.uneven: join does not work with separate documents)"));
}

}  // namespace

std::string DataSet::NameOf(size_t source) const {
  return sources.size() == 1 || source >= paths.size() ? key : absl::StrCat(key, ": ", paths[source]);
}

std::string DocumentsText(const Corpus& corpus) {
  std::string text;
  for (const Corpus::File& file : corpus.files()) absl::StrAppend(&text, "document of ", file.num_bytes, "\n");
  return text;
}

bool EvaluatesPart(const TrainConfig& config) {
  return config.evaluate_every > 0 && config.data.validation > 0 && config.data.held_out.empty();
}

bool DividesModel(const TrainConfig& config) { return config.parallel.stages > 1 || config.parallel.tensor > 1; }

int64_t SampleLength(const TrainConfig& config) { return config.sequence_length(); }

absl::Status AgreeOnData(const StartOrder& order, Communicator& world, Link& link, RankData& data, std::ostream& log) {
  RETURN_IF_ERROR(CheckSameDocuments(order, world, link, data));
  const std::vector<int64_t> own_counts = CountSamples(order.config, data);
  const auto columns = static_cast<int64_t>(own_counts.size());
  at::Tensor own = at::empty({columns}, at::kLong), all = at::empty({order.world_size, columns}, at::kLong);
  std::copy(own_counts.begin(), own_counts.end(), own.mutable_data_ptr<int64_t>());
  RETURN_IF_ERROR(world.AllGather(all, own)->Wait()) << "while comparing the data";
  std::vector<int64_t> smallest = own_counts;
  std::vector<size_t> differing;
  for (size_t column = 0; column < own_counts.size(); ++column) {
    const at::Tensor counts = all.select(1, static_cast<int64_t>(column));
    smallest[column] = counts.min().item<int64_t>();
    if (counts.max().item<int64_t>() != smallest[column]) differing.push_back(column);
  }
  MakeBatches(order.config, smallest, data);
  if (order.config.data.joins_uneven) data.recorded_samples = data.training->samples_by_source();
  // All ranks reach the same decision.
  const size_t num_sources = data.train.sources.size();
  if (!differing.empty()) {
    std::vector<std::string> texts;
    for (const size_t column : differing) {
      const bool trains = column < num_sources;
      const DataSet& set = trains ? data.train : EvaluationSet(data);
      texts.push_back(absl::StrCat("samples to ", trains ? "train" : "evaluate", " on (",
                                   set.NameOf(trains ? column : column - num_sources),
                                   "): ", ByRank(all, static_cast<int64_t>(column))));
    }
    const std::string counts = absl::StrJoin(texts, "; ");
    if (!order.config.data.joins_uneven) {
      return Refuse(order, world, link, data,
                    absl::InvalidArgumentError(absl::StrCat(
                        "train.data.uneven is 'refuse', but the ranks do not see the same number of ", counts,
                        "; give all hosts the same files, or choose join to use the smallest number everywhere")));
    }
    if (order.rank == 0)
      log << "warning: train.data.uneven: all ranks use the smallest number: " << counts << std::endl;
  }
  if (order.rank == 0) LogEpochs(order.config, data, log);
  if (data.evaluation == nullptr) return absl::OkStatus();
  // With `join`, ranks may have different files. All use the hash of rank 0, so that they agree on whether the results
  // of earlier evaluations still apply.
  const std::string hash = order.rank == 0 ? data.evaluation->ContentHash() : "";
  ASSIGN_OR_RETURN(const std::vector<std::string> shared, ShareSentences(hash, world), << "while comparing the data");
  data.evaluation_hash = shared.at(0);
  return absl::OkStatus();
}

absl::Status ContinueOrder(const StartOrder& order, const std::vector<int64_t>& before, RankData& data,
                           std::ostream& log) {
  if (before.empty()) return absl::OkStatus();
  const std::vector<int64_t> now = data.training->samples_by_source();
  if (now == before) {
    data.recorded_samples = before;
    return absl::OkStatus();
  }
  const std::string were = absl::StrJoin(before, ", "), are = absl::StrJoin(now, ", ");
  if (order.config.allow_data_change) {
    if (order.rank == 0) {
      log << "warning: train.data.uneven: the checkpoint was made with " << were
          << " samples to train on, now there are " << are
          << ", so they come in another order; checkpoint.allow_data_change is true, so the job continues" << std::endl;
    }
    return absl::OkStatus();
  }
  const bool suffice =
      now.size() == before.size() && std::equal(now.begin(), now.end(), before.begin(), std::greater_equal<int64_t>());
  if (suffice) {
    if (order.rank == 0) {
      log << "train.data.uneven: the run continues with the " << were << " samples to train on of its checkpoint; "
          << "the hosts have " << are << std::endl;
    }
    data.training = std::make_unique<TrainingData>(Limited(data.train, before.data()), order.config.data.weights,
                                                   order.config.seed);
    data.recorded_samples = before;
    return absl::OkStatus();
  }
  const std::string reason = WhyNotEnough(order, before, data);
  if (reason.empty()) {
    return absl::UnavailableError("another rank has fewer samples to train on than the checkpoint was made with");
  }
  absl::Status refusal = absl::FailedPreconditionError(
      absl::StrCat("train.data.uneven: ", reason,
                   ", so samples would be repeated or left out. Use hosts that have at least the earlier data, or "
                   "continue with this data: --allow-data-change (checkpoint.allow_data_change: true)"));
  const bool may_be_elsewhere = order.restart_step.has_value() && now.size() == before.size();
  return may_be_elsewhere ? CheckpointMissing(std::move(refusal)) : refusal;
}

}  // namespace trainyard
