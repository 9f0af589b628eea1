// The flags of `trainctl launch`, which are torchrun's, and the job that they describe. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

// As given on the command line; the defaults are torchrun's.
struct LaunchFlags {
  std::string nnodes = "1:1";
  std::string nproc_per_node = "1";
  uint32_t max_restarts = 0;
  bool standalone = false;
  bool module = false;
  bool no_python = false;
  std::string role = "default";
  std::string log_dir = {};
  std::string redirects = "0";
  std::string tee = "0";
  std::string local_ranks_filter = {};
  uint32_t node_rank = 0;
  std::optional<uint32_t> priority = {};         // of the job
  std::string name_space = {};                   // of the job; empty: the default
  std::vector<std::string> without_effect = {};  // "--rdzv-backend": given flags that a coordinator makes superfluous
  std::vector<std::string> env = {};             // NAME=value, for the script
  bool for_accelerate = false;                   // a flag or file of Accelerate is given
  std::vector<std::string> notes = {};           // sentences for the user about Accelerate's flags and file
  std::vector<std::string> program = {};         // the script, module or program, and its arguments
  std::vector<std::string> known = {};           // "--nnodes": all flags, which are suggested for unknown ones
};

struct LaunchFacts {
  bool on_cluster = false;   // a coordinator is given; false: private daemons on this machine
  bool json = false;         // the output of the ranks is printed as JSON
  uint32_t cores = 1;        // of this machine
  uint32_t gpus = 0;         // of this machine
  std::string workdir = {};  // the working directory
  std::string python = "python3";
};

// The streams that --redirects or --tee names, for each rank of a host or for all. 1: stdout, 2: stderr, 3: both.
class StreamChoice {
 public:
  // "3", or "0:1,1:2". Possible errors: InvalidArgument: `text` has neither form.
  static absl::StatusOr<StreamChoice> Parse(const std::string& text);
  bool Has(uint32_t local_rank, bool is_stderr) const;
  bool any() const;

 private:
  uint32_t all_ = 0;
  std::map<uint32_t, uint32_t> by_rank_;
};

struct LaunchPlan {
  v1::JobSpec spec;
  uint32_t ranks_per_host = 1;
  bool prefixes = false;  // each line begins with the role and the rank
  std::string role;
  std::string log_dir;                  // empty: the output is not written to files
  StreamChoice redirects;               // the streams that the terminal does not show, unless `tee` has them
  StreamChoice tee;                     // the streams that the terminal shows although `redirects` has them
  std::set<uint32_t> filter;            // the ranks of each host that the terminal shows; empty: all
  std::vector<std::string> notes = {};  // sentences for the user, such as which flags have no effect
};

// The number of GPUs that a program with this value of CUDA_VISIBLE_DEVICES sees. As CUDA does, stops at the first
// name that is invalid, such as -1. Pure.
uint32_t CountVisibleGpus(absl::string_view visible);

// Possible errors: InvalidArgument: flags that are wrong or not supported; the message has a line for each.
absl::StatusOr<LaunchPlan> PlanLaunch(const LaunchFlags& flags, const LaunchFacts& facts);

}  // namespace trainyard::client
