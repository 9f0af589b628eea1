// The work of one rank, as plain values: the job's spec with every default and `auto` decided, and this rank's position
// in the job. spec_config and link_messages make these values from messages, and the loop reads them. Includes neither
// protobuf nor torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/defaults.h"
#include "models/model_sizes.h"

namespace trainyard {

// A resolved JobSpec. Names and meanings are those of proto/trainyard/v1/job.proto.
struct TrainConfig {
  std::string job_name;

  // Names as in train.precision: fp32, fp64, bf16, fp16.
  struct Precision {
    std::string param = "fp32", reduce = "fp32", output = "fp32", master = "fp32", state = "fp32";
  } precision;
  struct LossScale {
    double initial = 65536;
    uint64_t window = 1000;
    double backoff = 0.5;
    uint64_t hysteresis = 2;
    double min = 1;
    bool is_static = false;
  } loss_scale;
  uint64_t nonfinite_limit = 10;  // consecutive steps without an update
  uint64_t steps = 0;
  uint64_t seed = 1337;

  ModelSizes model;
  std::string init_from;     // train.model.init_from; empty: initial weights are drawn from the seed
  std::string model_path;    // train.model.path; empty: the job gives the sizes itself
  std::string model_config;  // the text of config.json that gave the sizes; empty: none
  std::string lora_path;     // train.lora.path; empty: the initial adapters are drawn from the seed
  std::string lora_config;   // the text of adapter_config.json in lora_path

  struct Data {
    // Files, folders and globs; one of the four lists is not empty.
    std::vector<std::string> text;
    std::vector<std::string> jsonl = {};
    std::vector<std::string> tokens = {};
    std::vector<std::string> csv = {};
    std::vector<double> weights = {};        // of the entries of the non-empty list; empty: all are one source
    std::vector<std::string> held_out = {};  // for evaluation, in the form of the training data
    bool separate_documents = false;         // no attention across documents
    // The names of the fields of a line of JSONL; all empty: decided by the first line.
    struct Fields {
      std::string text = {}, prompt = {}, response = {}, input_ids = {}, labels = {}, label = {}, messages = {};
    } fields = {};
    bool loss_on_prompts = false;     // train.data.loss is `all`
    std::string tokenizer_path = {};  // empty: one token per byte
    std::string chat_template = {};   // the text of the template; empty: that of the tokenizer
    double validation = 0.05;
    bool joins_uneven = false;  // if ranks see different numbers of samples, all use the smallest
  } data;

  std::vector<std::string> freeze;  // globs of parameter names

  int64_t batch_global = 0;
  int64_t batch_micro = 0;
  int64_t batch_length = 0;  // tokens of a training sequence; 0: model.context
  int64_t sequence_length() const { return batch_length > 0 ? batch_length : model.context; }

  struct Optimizer {
    double lr = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip_norm = 1.0;
    double clip_value = 0;
  } optimizer;

  enum class LrScheduleKind { kCosine, kLinear, kConstant, kInverseSqrt, kWsd };
  enum class DecayShape { kCosine, kLinear, kSqrt };
  struct LrSchedule {
    LrScheduleKind kind = LrScheduleKind::kCosine;
    bool zero_based = false;  // the first step is number 0 in the formula
    uint64_t warmup_steps = 0;
    double min_ratio = 0.1;
    uint64_t decay_steps = 0;                // of kWsd
    DecayShape decay = DecayShape::kCosine;  // of kWsd
    uint64_t timescale = 0;                  // of kInverseSqrt
  } lr_schedule;

  uint64_t evaluate_every = 0;  // steps; 0: never
  int64_t evaluate_batches = 8;
  uint64_t evaluate_patience = 0;  // evaluations without a lower loss; 0: no limit
  double evaluate_min_delta = 0;

  // Meanings in worker/parallel/data_parallel_options.h. The coordinator has checked that sizes and ranks fit.
  struct Parallel {
    std::string strategy = "ddp";  // a name of parallel.data
    int shard = 0;                 // 0: all ranks that the other axes leave
    int replicate = 0;
    int64_t bucket_elements = defaults::kBucketElements;
    bool overlap = true;
    std::optional<bool> reduce_scatter;  // none: on, except for zero1 over sockets
    bool reduce_every_micro_batch = false;
    bool reshard_after_forward = true;
    int reshard_to = 0;  // ranks that gather a unit again for backward; 0: all that share it
    int64_t gather_bucket_elements = defaults::kBucketElements;
    bool all_gather = true;
    int64_t persist_elements = 0;
    int64_t prefetch_elements = -1;  // -1: one unit
    int64_t max_live_elements = defaults::kMaxLiveElements;
    int64_t reuse_elements = 0;
    std::string recompute = "none";  // a name of parallel.recompute.mode
    int recompute_every = 1;
    int64_t optimizer_tile_elements = defaults::kOptimizerTileElements;
    bool offload_optimizer = false;
    bool offload_parameters = false;
    int tensor = 1;                 // ranks that share each layer
    bool sequence = false;          // these ranks also divide the activations outside of their matrix products
    int stages = 1;                 // of the pipeline
    std::string schedule = "1f1b";  // a name of parallel.pipeline.schedule
    int chunks_per_rank = 1;
    std::vector<int> split = {};  // blocks of each chunk of the model, in order; empty: as equal as possible
  } parallel;

  bool reverse_micro_batches = false;  // each rank runs the micro-batches of a step in reverse order
  bool events = false;                 // write each rank's events with their times
  uint64_t hash_every_steps = 0;       // steps between comparisons of all parameters; 0: never

  enum class Device { kCpu, kCuda };
  Device device = Device::kCpu;
  enum class Switch { kAuto, kOn, kOff };
  enum class ProductKernels { kAuto, kMkl, kMklIntel };
  ProductKernels product_kernels = ProductKernels::kAuto;
  Switch shared_memory = Switch::kAuto;

  // Set: the job measures hosts instead of training, and only job_name, device and product_kernels are set as well.
  struct Probe {
    int64_t matmul_size = 1024;
    int64_t matmul_repeats = 5;
    int64_t all_reduce_bytes = 4 << 20;
  };
  std::optional<Probe> probe;

  std::string checkpoint_dir;
  uint64_t checkpoint_every = 0;  // steps; 0: only the last
  uint64_t checkpoint_keep = 3;   // 0: all
  uint64_t checkpoint_keep_every = 0;
  bool checkpoint_keep_best = false;  // save after each evaluation with the lowest loss so far, never delete the best
  bool allow_data_change = false;
  bool checkpoint_full = false;  // weights are stored whole, in one file
  bool checkpoint_full_optimizer = false;
  std::string checkpoint_copy = {};  // 16-bit type of a copy of the weights, as in safetensors; empty: none
  double checkpoint_timeout_s = 1800;
  double checkpoint_last_save_retry_s = 600;  // how long a failed last save is retried
  uint64_t checkpoint_write_bytes_per_s = 0;  // 0: no limit
};

// A checkpoint whose rename the coordinator granted, whether or not the coordinator knows that the rename took place.
struct GrantedSave {
  uint64_t step = 0;
  uint64_t generation = 0;
  std::string manifest_hash;
  bool operator==(const GrantedSave&) const = default;
};

// A key whose value differs between two jobs, with both values as YAML.
struct KeyChange {
  std::string key;
  std::string before;
  std::string now;
  bool operator==(const KeyChange&) const = default;
};
// Returns the keys in which this job differs from the job of the spec `before`; see same_computation.h.
using CompareSpec = std::function<absl::StatusOr<std::vector<KeyChange>>(absl::string_view before)>;

// What the daemon sends to a trainer that has registered.
struct StartOrder {
  std::string job_id;
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  // ranks of this generation that this daemon runs
  int threads = 1;
  std::string host;
  std::string data_address;  // this host's address for traffic between ranks
  // A folder in shared memory: snapshots there outlive this trainer. Empty: there is none.
  std::string snapshot_folder;
  // True: config.checkpoint_dir may hold checkpoints of this job. False: it must be empty.
  bool resume = false;
  // With `resume`: training begins with step 1 if config.checkpoint_dir holds no checkpoint.
  bool allow_fresh_start = false;
  // The step from which the coordinator wants to resume. None: that of the newest good checkpoint, else step 0.
  std::optional<uint64_t> restart_step;
  std::vector<GrantedSave> grants;  // a few of earlier generations, oldest first; set for rank 0 only
  std::string spec_bytes;
  std::string spec_digest;  // computed by the trainer over spec_bytes
  TrainConfig config;
  CompareSpec compare_spec = nullptr;  // compares this job with that of a checkpoint; null: specs are not compared
};

}  // namespace trainyard
