// The smallest valid job spec.
#pragma once

#include "trainyard/v1/job.pb.h"

namespace trainyard {

inline v1::JobSpec SmallSpec() {
  v1::JobSpec spec;
  spec.set_name("small");
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(2);
  train.mutable_model()->set_heads(4);
  train.mutable_model()->set_width(64);
  train.mutable_model()->set_context(32);
  train.mutable_data()->add_text("/data");
  train.mutable_batch()->set_global_size(8);
  train.mutable_batch()->set_micro(2);
  train.set_steps(100);
  spec.mutable_checkpoint()->set_dir("/run");
  return spec;
}

}  // namespace trainyard
