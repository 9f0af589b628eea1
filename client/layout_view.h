// Formats how the ranks of a job divide model and data, as text and as JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// "fsdp on 2 ranks, fp32, cpu": the strategy of data parallelism, the ranks, the precision and the device of training;
// empty for jobs without training. The device is "auto" until the coordinator has chosen hosts.
std::string StrategyLine(const v1::Job& job);

// "stages 2 x data ranks 2 x tensor 2 = 8 ranks; 1f1b, 8 micro-batches, bubble 11.1 %"; empty if neither stages nor
// tensor ranks divide the model. With parallel.sequence "; tensor ranks divide the sequence" follows the ranks. `spec`
// is resolved.
std::string LayoutLine(const v1::JobSpec& spec);

// LayoutLine, the arithmetic of the batch, and a table of the stages with their blocks and ranks, in which tensor ranks
// are joined by '+' and data ranks separated by '|'. Without stages and tensor ranks only the arithmetic of the batch;
// empty for jobs without training.
std::string LayoutText(const v1::JobSpec& spec);

// {"stages":2,"data_ranks":2,"tensor":2,"sequence":false,"schedule":"1f1b","chunks_per_rank":1,"micro_batches":8,
// "bubble_share":0.11,"blocks":[[[0,4]],[[4,8]]]}: of each stage, the ranges of blocks of its chunks. An empty object
// for jobs without training.
nlohmann::ordered_json LayoutJson(const v1::JobSpec& spec);

}  // namespace trainyard::client
