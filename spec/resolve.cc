#include "spec/resolve.h"

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/strict_yaml.h"
#include "spec/validate.h"

namespace trainyard {
namespace {

class Resolver {
 public:
  explicit Resolver(v1::JobSpec* spec) : spec_(*spec) {}

  void Micro() {
    v1::Batch& batch = *spec_.mutable_train()->mutable_batch();
    if (batch.has_micro()) return;
    // ValidateJob has seen to it that the ranks divide the global batch.
    const uint32_t ranks = spec_.resources().ranks();
    batch.set_micro(batch.global() / ranks);
    Told("train.batch.micro", absl::StrCat(batch.micro()),
         absl::StrCat("the largest that gives each of ", ranks, ranks == 1 ? " rank" : " ranks",
                      " the same count: global ", batch.global(), " = ", batch.micro(), " x ", ranks));
  }

  void Vocabulary() {
    v1::Model& model = *spec_.mutable_train()->mutable_model();
    if (model.has_vocabulary()) return;
    const v1::Tokenizer tokenizer = spec_.train().data().tokenizer();
    model.set_vocabulary(TokenizerVocabulary(tokenizer));
    Told("train.model.vocabulary", absl::StrCat(model.vocabulary()),
         absl::StrCat("what the tokenizer ", EnumWord(*v1::Tokenizer_descriptor()->FindValueByNumber(tokenizer)),
                      " has"));
  }

  void Device() {
    if (spec_.resources().has_device()) return;
    spec_.mutable_resources()->set_device(v1::DEVICE_CPU);
    Told("resources.device", "cpu", "this version trains on CPUs only");
  }

  void Folder(const std::string& job_id, const std::string& default_run_root) {
    if (spec_.checkpoint().has_dir() || default_run_root.empty()) return;
    std::string dir = JoinPath(default_run_root, absl::StrCat(spec_.name(), "-", job_id));
    spec_.mutable_checkpoint()->set_dir(dir);
    Told("checkpoint.dir", dir, "not given: a folder of its own below the submitter's working directory");
  }

  void LeftToHosts() {
    if (!spec_.resources().has_threads_per_rank()) {
      Told("resources.threads_per_rank", "auto",
           "decided by each host when a rank starts: its cores, shared by the job's ranks there");
    }
    if (!spec_.resources().has_mkl_avx512()) {
      Told("resources.mkl_avx512", "auto", "decided by each host when a rank starts: on where its CPU has AVX-512");
    }
    if (!spec_.network().has_interface() && spec_.resources().ranks() > 1) {
      Told("network.interface", "auto", "decided by each host: the interface that reaches the coordinator");
    }
    if (!spec_.network().has_shared_memory() && spec_.resources().ranks() > 1) {
      Told("network.shared_memory", "auto", "decided when the ranks are placed: on where all of them are on one host");
    }
  }

  std::vector<v1::ResolvedKey> Take() { return std::move(decisions_); }

 private:
  void Told(const std::string& key, const std::string& value, const std::string& reason) {
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
  ApplyDefaults(spec);
  // Defaults make every map there is; of the two kinds of job only the one that was asked for stays.
  if (trains) {
    spec->clear_probe();
  } else {
    spec->clear_train();
    spec->clear_parallel();
    spec->clear_checkpoint();
  }
  Resolver resolver(spec);
  if (trains) {
    resolver.Micro();
    resolver.Vocabulary();
  }
  resolver.Device();
  if (trains) resolver.Folder(job_id, default_run_root);
  resolver.LeftToHosts();
  return resolver.Take();
}

}  // namespace trainyard
