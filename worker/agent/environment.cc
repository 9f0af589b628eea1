#include "worker/agent/environment.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::agent {
namespace {

constexpr char kPath[] = "PATH";
// Copied from the daemon's environment if set: to find programs, libraries, users' files and devices.
constexpr absl::string_view kInherited[] = {
    kPath,
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "TZ",
    "USER",
    "LD_LIBRARY_PATH",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",  // what the numbers in CUDA_VISIBLE_DEVICES mean
    "ASAN_OPTIONS",
    "TSAN_OPTIONS",
    "UBSAN_OPTIONS",
    // The next five restrict the kernels of Trainyard, LibTorch, MKL and oneDNN: a host acts as if it had another CPU.
    "TRAINYARD_CPU",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "TRAINYARD_FAULT_POINTS",
};
// All variables with this prefix are copied, too. NCCL has about a hundred.
constexpr char kNcclPrefix[] = "NCCL_";
constexpr char kNcclInterface[] = "NCCL_SOCKET_IFNAME";
constexpr int kSpinCount = 2000;
constexpr char kPathDefault[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

}  // namespace

std::vector<std::string> TrainerEnvironment(const v1::DesiredTrainer& desired, const EnvironmentOptions& options) {
  std::vector<std::string> variables;
  auto set = [&](absl::string_view name, const auto& value) { variables.push_back(absl::StrCat(name, "=", value)); };
  // Trainers bind gloo to the data address, but NCCL chooses interfaces itself, unless the job or the daemon's
  // environment names one. Without "=", eth1 would be a prefix that eth10 matches, too.
  v1::JobSpec spec;
  const bool names_interface = spec.ParseFromString(desired.spec()) && !spec.network().interface().empty();
  if (names_interface) set(kNcclInterface, absl::StrCat("=", spec.network().interface()));
  bool has_path = false;
  for (const char* const* at = options.inherited; at != nullptr && *at != nullptr; ++at) {
    const absl::string_view variable = *at;
    const absl::string_view name = variable.substr(0, variable.find('='));
    const bool is_replaced = names_interface && name == kNcclInterface;
    if (is_replaced || !(absl::StartsWith(name, kNcclPrefix) || absl::c_linear_search(kInherited, name))) continue;
    variables.emplace_back(variable);
    has_path = has_path || name == kPath;
  }
  if (!has_path) set(kPath, kPathDefault);
  set("TRAINYARD_TOKEN", options.token);
  if (!options.snapshots.empty()) set("TRAINYARD_SNAPSHOTS", options.snapshots);
  set("OMP_NUM_THREADS", options.threads);
  set("MKL_NUM_THREADS", options.threads);
  // A thread that waits sleeps, because ranks and jobs may share the cores. If each thread has a core for itself, it
  // spins for about 0.1 ms first: operations of a small model are shorter than the time in which a thread wakes up.
  set("OMP_WAIT_POLICY", "PASSIVE");
  if (options.owns_cores && options.threads > 1) set("GOMP_SPINCOUNT", kSpinCount);
  set("GRPC_ENABLE_FORK_SUPPORT", "false");
  // The names that torchrun uses.
  set("RANK", desired.key().rank());
  set("WORLD_SIZE", desired.world_size());
  set("LOCAL_RANK", desired.local_rank());
  set("LOCAL_WORLD_SIZE", desired.local_world_size());
  return variables;
}

}  // namespace trainyard::agent
