// The job with a command that tests of the daemon use.
#pragma once

#include "core_driver.h"

namespace trainyard::agent {

inline v1::JobSpec CommandSpec() {
  v1::JobSpec spec;
  spec.mutable_command()->add_argv("sh");
  spec.mutable_command()->add_argv("-c");
  spec.mutable_command()->set_workdir("/");
  spec.mutable_command()->set_grace_s(5);
  spec.mutable_recovery()->set_max_restarts(3);
  return spec;
}

inline v1::DesiredTrainer DesiredCommand(uint32_t rank, const v1::JobSpec& spec = CommandSpec()) {
  v1::DesiredTrainer desired = Desired(Rank(rank));
  desired.set_spec(spec.SerializeAsString());
  desired.set_local_rank(rank);
  desired.set_data_address("10.0.0.1");
  desired.set_group_world_size(1);
  return desired;
}

}  // namespace trainyard::agent
