#include "spec/resolve.h"

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/strict_yaml.h"
#include "spec/device_rules.h"
#include "spec/parallel_rules.h"
#include "spec/precision_rules.h"
#include "spec/validate.h"

namespace trainyard {
namespace {

class Resolver {
 public:
  explicit Resolver(v1::JobSpec* spec) : spec_(*spec) {}

  void Micro() {
    v1::Batch& batch = *spec_.mutable_train()->mutable_batch();
    if (batch.has_micro()) return;
    const uint32_t ranks = spec_.resources().ranks();
    batch.set_micro(static_cast<uint32_t>(AutoMicro(batch.global_size(), ranks)));
    const DealShape deal = DealShapeOf(batch.global_size(), batch.micro(), ranks);
    const std::string whom = absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks");
    Decided("train.batch.micro", absl::StrCat(batch.micro()),
            deal.idle == 0 ? absl::StrCat("the largest that gives each of ", whom, " the same count: global ",
                                          batch.global_size(), " = ", batch.micro(), " x ", ranks)
                           : absl::StrCat("the largest that leaves the fewest of ", whom, " idle: ", deal.micro_batches,
                                          " micro-batches in ", deal.rounds, " rounds, ", deal.idle, " places of ",
                                          deal.rounds * ranks, " empty"));
  }

  // Both sizes, so that every rank builds the same mesh.
  void DataSizes() {
    v1::Parallel& parallel = *spec_.mutable_parallel();
    if (parallel.data() == v1::DATA_PARALLEL_DDP) {
      parallel.clear_shard();
      parallel.clear_replicate();
      return;
    }
    const uint32_t ranks = spec_.resources().ranks();
    const trainyard::DataSizes sizes = DataSizesOf(parallel, ranks);
    const std::string product = absl::StrCat("shard ", sizes.shard, " x replicate ", sizes.replicate, " = ", ranks,
                                             ranks == 1 ? " rank" : " ranks");
    if (!parallel.has_shard()) Decided("parallel.shard", absl::StrCat(sizes.shard), product);
    if (!parallel.has_replicate()) Decided("parallel.replicate", absl::StrCat(sizes.replicate), product);
    parallel.set_shard(static_cast<uint32_t>(sizes.shard));
    parallel.set_replicate(static_cast<uint32_t>(sizes.replicate));
  }

  // As in DeepSpeed's stage 3, small parameters stay gathered: ten rows do not justify an operation of their own.
  void PersistElements() {
    v1::Parallel& parallel = *spec_.mutable_parallel();
    if (parallel.has_persist_elements() || parallel.data() != v1::DATA_PARALLEL_ZERO3) return;
    parallel.set_persist_elements(10 * uint64_t{spec_.train().model().width()});
    Decided("parallel.persist_elements", absl::StrCat(parallel.persist_elements()),
            "of zero3: 10 x width; smaller parameters stay gathered");
  }

  void Vocabulary() {
    v1::Model& model = *spec_.mutable_train()->mutable_model();
    if (model.has_vocabulary()) return;
    const v1::Tokenizer tokenizer = spec_.train().data().tokenizer();
    model.set_vocabulary(TokenizerVocabulary(tokenizer));
    Decided("train.model.vocabulary", absl::StrCat(model.vocabulary()),
            absl::StrCat("what the tokenizer ", EnumName(*v1::Tokenizer_descriptor()->FindValueByNumber(tokenizer)),
                         " has"));
  }

  void Device() {
    if (spec_.resources().has_device()) return;
    const std::string why_cpu = WhyNotOnGpu(spec_);
    if (why_cpu.empty()) {
      Decided("resources.device", "auto",
              "decided when the ranks are placed: cuda where each of their hosts has a GPU for every rank");
      return;
    }
    spec_.mutable_resources()->set_device(v1::DEVICE_CPU);
    Decided("resources.device", "cpu", why_cpu);
  }

  void Folder(const std::string& job_id, const std::string& default_run_root) {
    if (spec_.checkpoint().has_dir() || default_run_root.empty()) return;
    std::string dir = JoinPath(default_run_root, absl::StrCat(spec_.name(), "-", job_id));
    spec_.mutable_checkpoint()->set_dir(dir);
    Decided("checkpoint.dir", dir, "not given: a folder of its own below the submitter's working directory");
  }

  void LeftToHosts() {
    if (!spec_.resources().has_threads_per_rank()) {
      Decided("resources.threads_per_rank", "auto",
              "decided by each host when a rank starts: its cores, shared by the job's ranks there");
    }
    if (!spec_.resources().has_mkl_avx512()) {
      Decided("resources.mkl_avx512", "auto",
              "decided by each host when a rank starts: on where that is faster, measured once");
    }
    if (!spec_.network().has_interface() && spec_.resources().ranks() > 1) {
      Decided("network.interface", "auto", "decided by each host: the interface that reaches the coordinator");
    }
    if (!spec_.network().has_shared_memory() && spec_.resources().ranks() > 1) {
      Decided("network.shared_memory", "auto", "decided when the ranks are placed: among those of one host");
    }
  }

  std::vector<v1::ResolvedKey> Take() { return std::move(decisions_); }

 private:
  void Decided(const std::string& key, const std::string& value, const std::string& reason) {
    v1::ResolvedKey decision;
    decision.set_key(key);
    decision.set_value(value);
    decision.set_reason(reason);
    decisions_.push_back(std::move(decision));
  }

  v1::JobSpec& spec_;
  std::vector<v1::ResolvedKey> decisions_;
};

}  // namespace

std::vector<v1::ResolvedKey> ResolveJob(const std::string& job_id, const std::string& default_run_root,
                                        v1::JobSpec* spec) {
  const bool trains = spec->has_train();
  if (trains) {
    v1::PrecisionPolicy& precision = *spec->mutable_train()->mutable_precision();
    precision = ResolvedPrecision(precision);
    // Clipping by value replaces clipping by norm.
    v1::Optimizer& optimizer = *spec->mutable_train()->mutable_optimizer();
    if (optimizer.clip_value() > 0 && !optimizer.has_clip_norm()) optimizer.set_clip_norm(0);
  }
  ApplyDefaults(spec);
  // ApplyDefaults creates every map, also those of the other kind of job; remove these.
  if (trains) {
    spec->clear_probe();
  } else {
    spec->clear_train();
    spec->clear_parallel();
    spec->clear_checkpoint();
    spec->clear_diagnostics();
  }
  Resolver resolver(spec);
  if (trains) {
    resolver.Micro();
    resolver.Vocabulary();
    resolver.DataSizes();
    resolver.PersistElements();
  }
  resolver.Device();
  if (trains) resolver.Folder(job_id, default_run_root);
  resolver.LeftToHosts();
  return resolver.Take();
}

}  // namespace trainyard
