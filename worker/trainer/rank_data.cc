#include "worker/trainer/rank_data.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/data/byte_samples.h"

namespace trainyard {
namespace {

bool Evaluates(const TrainConfig& config) { return config.evaluate_every > 0 && config.data.validation > 0; }

// Uses the first samples of each part.
void MakeBatches(const TrainConfig& config, int64_t training_samples, int64_t evaluation_samples, RankData& data) {
  data.training = std::make_unique<TrainingData>(*data.samples, config.seed, training_samples);
  if (!Evaluates(config)) return;
  data.evaluation =
      std::make_unique<EvaluationData>(*data.samples, config.evaluate_batches, config.batch_micro, evaluation_samples);
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

absl::Status OpenBytes(const StartOrder& order, RankData& data, std::ostream& log) {
  const TrainConfig& config = order.config;
  const int64_t length = SampleLength(config);
  ASSIGN_OR_RETURN(data.corpus,
                   Corpus::Open({.paths = config.data.text,
                                 .validation = config.data.validation,
                                 .context = length,
                                 .evaluates = Evaluates(config)}),
                   << "host " << order.host);
  data.samples = std::make_unique<ByteSamples>(*data.corpus, length);
  if (order.rank != 0) return absl::OkStatus();
  log << absl::StrFormat("data: %d files, %.1f MB, %.1f MB of them for validation; an epoch is %d samples of %d tokens",
                         data.corpus->files().size(), static_cast<double>(data.corpus->num_bytes()) / 1e6,
                         static_cast<double>(data.corpus->num_validation_bytes()) / 1e6,
                         data.samples->num_samples(DataPart::kTraining), length)
      << std::endl;
  return absl::OkStatus();
}

absl::Status OpenEncoder(const TrainConfig& config, TokenPlan& plan) {
  if (!plan.is_text && !plan.rules.needs_encoder()) return absl::OkStatus();
  const std::string& path = config.data.tokenizer_path;
  if (path.empty()) {
    plan.encoder = NewByteEncoder();
  } else {
    ASSIGN_OR_RETURN(plan.encoder, OpenTextEncoder(path),
                     << "train.data.tokenizer_path (train.data.tokenizer: bytes needs none)");
  }
  const TextEncoder& encoder = *plan.encoder;
  if (encoder.vocabulary() > config.model.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("train.model.vocabulary is ", config.model.vocabulary,
                                                   ", but the tokenizer has tokens up to ", encoder.vocabulary() - 1,
                                                   "; set it to at least ", encoder.vocabulary()));
  }
  if (!plan.rules.has_documents() && !encoder.has_end()) {
    return absl::InvalidArgumentError(
        "train.data.tokenizer_path: the tokenizer has no token that ends a document, so documents cannot be joined; "
        "name one as eos_token in tokenizer_config.json, or set train.data.tokenizer: bytes for a model of bytes");
  }
  return absl::OkStatus();
}

// For files that are tokenized: everything about them that one host can check alone.
absl::Status OpenTokenized(const StartOrder& order, RankData& data) {
  const TrainConfig& config = order.config;
  const bool is_text = config.data.jsonl.empty();
  ASSIGN_OR_RETURN(data.corpus, Corpus::Open({.paths = is_text ? config.data.text : config.data.jsonl,
                                              .key = is_text ? "train.data.text" : "train.data.jsonl"}));
  data.plan = std::make_unique<TokenPlan>();
  TokenPlan& plan = *data.plan;
  plan.is_text = is_text;
  const TrainConfig::Data::Fields& fields = config.data.fields;
  plan.rules = {.fields = {.text = fields.text,
                           .prompt = fields.prompt,
                           .response = fields.response,
                           .input_ids = fields.input_ids,
                           .labels = fields.labels},
                .loss_on_prompt = config.data.loss_on_prompts,
                .vocabulary = config.model.vocabulary};
  if (!is_text && plan.rules.fields == RecordFields()) {
    ASSIGN_OR_RETURN(plan.rules.fields, FieldsOfFirstRecord(*data.corpus));
  }
  RETURN_IF_ERROR(OpenEncoder(config, plan));
  plan.pieces = is_text ? CutText(*data.corpus, *plan.encoder) : CutAtLines(*data.corpus);
  std::string rules =
      absl::StrCat("tokens of version 1\n", is_text ? "text" : "jsonl", "\n", plan.rules.identity(), "\n",
                   plan.encoder == nullptr ? "" : plan.encoder->identity(), "\n", config.model.vocabulary, "\n");
  // The chunks follow from the pieces, so the same bytes in other files need another key.
  for (const DataPiece& piece : plan.pieces)
    absl::StrAppend(&rules, piece.file, " ", piece.begin, " ", piece.end, "\n");
  data.corpus->SetRules(rules);
  return absl::OkStatus();
}

}  // namespace

int64_t SampleLength(const TrainConfig& config) { return config.sequence_length(); }

absl::Status OpenData(const StartOrder& order, RankData& data, std::ostream& log) {
  const TrainConfig::Data& config = order.config.data;
  if (config.jsonl.empty() && config.tokenizer_path.empty()) return OpenBytes(order, data, log);
  RETURN_IF_ERROR(OpenTokenized(order, data)) << "host " << order.host;
  return absl::OkStatus();
}

absl::Status AgreeOnData(const StartOrder& order, Communicator& world, RankData& data, std::ostream& log) {
  MakeBatches(order.config, /*training_samples=*/INT64_MAX, /*evaluation_samples=*/INT64_MAX, data);
  at::Tensor own = at::empty({2}, at::kLong), all = at::empty({order.world_size, 2}, at::kLong);
  own.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(data.training->num_samples());
  own.mutable_data_ptr<int64_t>()[1] = data.evaluation == nullptr ? 0 : data.evaluation->num_samples();
  RETURN_IF_ERROR(world.AllGather(all, own)->Wait()) << "while comparing the data";
  int64_t training = INT64_MAX, evaluation = INT64_MAX;
  bool same = true;
  for (int r = 0; r < order.world_size; ++r) {
    const int64_t* counts = all.const_data_ptr<int64_t>() + 2 * r;
    training = std::min(training, counts[0]);
    evaluation = std::min(evaluation, counts[1]);
    same = same && std::equal(counts, counts + 2, own.const_data_ptr<int64_t>());
  }
  // All ranks reach the same decision.
  if (same) return absl::OkStatus();
  std::string counts = absl::StrCat("samples to train on: ", ByRank(all, 0));
  if (data.evaluation != nullptr) absl::StrAppend(&counts, "; to evaluate on: ", ByRank(all, 1));
  if (!order.config.data.joins_uneven) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.data.uneven is refuse, and the ranks do not see the same number of ", counts,
                     "; give all hosts the same files, or choose join to use the smallest number everywhere"));
  }
  if (order.rank == 0) log << "warning: train.data.uneven: the smallest number counts for all: " << counts << std::endl;
  MakeBatches(order.config, training, evaluation, data);
  return absl::OkStatus();
}

}  // namespace trainyard
