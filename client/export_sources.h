// What an export needs in addition to the checkpoint.
#pragma once

#include <string>

#include "trainyard/v1/job.pb.h"

namespace trainyard::client {

// Returns the weights to which the adapters of a job with this model belong: those that the job began with. If these
// are a checkpoint with adapters, the job has trained those adapters further, so the result is the weights to which the
// adapters of the checkpoint belong, and so on. Reads manifests; empty: the job names no weights.
std::string BaseOfAdapters(v1::Model model);

// The folder or file of the tokenizer of a resolved job's data, else the folder of its model; empty: the job names
// neither, or it was trained on bytes.
std::string TokenizerToExport(const v1::Train& train);

}  // namespace trainyard::client
