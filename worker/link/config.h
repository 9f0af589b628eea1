// What one rank is to do, as plain values: the job's spec with every default and `auto` decided, and the place of this
// rank in it. Made from the wire by spec_config and link_messages, read by the loop; knows neither protobuf nor torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// A JobSpec after it was resolved. Names and meanings are those of proto/trainyard/v1/job.proto.
struct TrainConfig {
  std::string job_name;

  // Words of train.precision: fp32, fp64, bf16, fp16.
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
  uint64_t nonfinite_limit = 10;  // steps without an update in a row
  uint64_t steps = 0;
  uint64_t seed = 1337;

  struct Model {
    int64_t layers = 0;
    int64_t heads = 0;
    int64_t width = 0;
    int64_t context = 0;
    int64_t vocabulary = 256;
    double dropout = 0;
    std::string init_from;  // empty: weights are drawn from the seed
  } model;

  struct Data {
    std::vector<std::string> text;
    double validation = 0.05;
    bool joins_uneven = false;  // ranks that see different numbers of samples use the smallest
  } data;

  std::vector<std::string> freeze;  // globs of parameters' names

  int64_t batch_global = 0;
  int64_t batch_micro = 0;

  struct Optimizer {
    double lr = 3e-4;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    double clip_norm = 1.0;
    double clip_value = 0;
  } optimizer;

  enum class ScheduleKind { kCosine, kLinear, kConstant };
  struct Schedule {
    ScheduleKind kind = ScheduleKind::kCosine;
    uint64_t warmup_steps = 0;
    double min_ratio = 0.1;
  } schedule;

  uint64_t evaluate_every = 0;  // steps; 0: never
  int64_t evaluate_batches = 8;

  // Meanings in worker/parallel/data_parallel.h; the reader has checked that sizes and ranks fit.
  struct Parallel {
    std::string strategy = "ddp";  // a word of parallel.data
    int shard = 0;                 // 0: what is left of the ranks
    int replicate = 0;
    int64_t bucket_elements = 6553600;
    bool overlap = true;
    std::optional<bool> reduce_scatter;  // none: not for zero1 over sockets
    bool reduce_every_micro_batch = false;
    bool reshard_after_forward = true;
    int reshard_to = 0;  // ranks that gather a unit again for backward; 0: all that share it
    int64_t gather_bucket_elements = 6553600;
    bool all_gather = true;
    int64_t persist_elements = 0;
    int64_t prefetch_elements = -1;  // -1: one unit
    int64_t max_live_elements = 1000000000;
    int64_t reuse_elements = 0;
    std::string recompute = "none";  // a word of parallel.recompute.mode
    int recompute_every = 1;
    int64_t optimizer_tile_elements = 1000000000;
    bool offload_optimizer = false;
    bool offload_parameters = false;
  } parallel;

  bool reverse_micro_batches = false;  // of each rank, in each step
  bool events = false;                 // write what each rank did when
  uint64_t hash_every_steps = 0;       // steps between comparisons of all parameters; 0: never

  enum class Device { kCpu, kCuda };
  Device device = Device::kCpu;
  enum class Switch { kAuto, kOn, kOff };
  Switch mkl_avx512 = Switch::kAuto;
  Switch shared_memory = Switch::kAuto;

  // The job times hosts instead of training; all above but device and mkl_avx512, and all below, is unset then.
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
  bool allow_data_change = false;
  bool checkpoint_full = false;  // weights lie whole in one file
  bool checkpoint_full_optimizer = false;
  std::string checkpoint_copy = {};  // 16-bit type of a copy of the weights, as in safetensors; empty: none
  double checkpoint_timeout_s = 1800;
  double checkpoint_last_save_retry_s = 600;  // for which the last save is tried again
  uint64_t checkpoint_write_bytes_per_s = 0;  // 0: no limit
};

// A checkpoint that the coordinator granted its name, whether or not it was heard to have got it.
struct GrantedSave {
  uint64_t step = 0;
  uint64_t generation = 0;
  std::string manifest_hash;
  bool operator==(const GrantedSave&) const = default;
};

// A key in which a job differs from another one: its values, as YAML.
struct KeyChange {
  std::string key;
  std::string before;
  std::string now;
  bool operator==(const KeyChange&) const = default;
};
// In which keys a job differs from the one of these spec bytes; see same_computation.h.
using CompareSpec = std::function<absl::StatusOr<std::vector<KeyChange>>(absl::string_view before)>;

// What the daemon gives a trainer once it has registered.
struct StartOrder {
  std::string job_id;
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;  // ranks of this generation that this daemon runs
  int threads = 1;
  std::string host;
  std::string data_address;  // of this host, for the ranks' own traffic
  // In shared memory: what is copied there for a save outlives this trainer. Empty: there is none.
  std::string snapshot_folder;
  // The folder may hold checkpoints of this job; false: it must be empty.
  bool resume = false;
  // With `resume`: training begins with step 1 where the folder holds no checkpoint.
  bool allow_fresh_start = false;
  // The step the coordinator wants to go on from. None: the newest good one, else the start.
  std::optional<uint64_t> restart_step;
  std::vector<GrantedSave> grants;  // of earlier generations, oldest first; a few. Rank 0's alone
  std::string spec_bytes;
  std::string spec_digest;  // computed here, over these very bytes
  TrainConfig config;
  CompareSpec compare_spec = nullptr;  // of this job with that of a checkpoint; null: nobody reads specs here
};

}  // namespace trainyard
