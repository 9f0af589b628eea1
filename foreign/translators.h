// The translators: each reads a group of keys of a foreign file and sets the keys of the job that they mean. import.cc
// calls the translator of the file's program first. TranslateBatch follows, because it needs the ranks and the division
// of the model that the first translator has set. SetTrainingDefaults is the last one. Pure.
#pragma once

#include "foreign/translation.h"

namespace trainyard::foreign {

// accelerate.cc: distributed_type, num_processes, device, precision, and the groups of Accelerate.
void TranslateAccelerate(Translation* t);
// fsdp.cc: fsdp_config of Accelerate and of TrainingArguments. `version`: the version of FSDP if the file does not give
// it. `ranks_per_host`: the number of ranks that share a copy under HYBRID_SHARD; 0: unknown.
void TranslateFsdp(Translation* t, int version, uint64_t ranks_per_host);
// trainer.cc: the keys of TrainingArguments, without its batch.
void TranslateTrainer(Translation* t);
// trainer.cc: if `from` has made the job compute in fp16, sets how PyTorch's GradScaler scales losses by default, which
// differs from a job.
void SetScalerDefaults(Translation* t, const Value& from);

// zero.cc: all keys of DeepSpeed except the batch, by the four translators that follow.
void TranslateDeepSpeed(Translation* t);
// zero.cc: zero_optimization, tensor_parallel and pipeline of DeepSpeed.
void TranslateZero(Translation* t);
// zero.cc: sets what DeepSpeed does with the gradients of several micro-batches. Call it after TranslateBatch.
void SetReduction(Translation* t);
// numbers.cc: fp16, bf16, optimizer and scheduler of DeepSpeed.
void TranslatePrecision(Translation* t);
void TranslateOptimizer(Translation* t);
void TranslateSchedule(Translation* t);
// numbers.cc: sets DeepSpeed's defaults for clipping and schedule if the file has an optimizer but does not give them.
// Call it after the others.
void SetTrainingDefaults(Translation* t);

// batch.cc: the sizes of a batch. BatchKeys holds the names of their keys in the file ("": files of this kind have no
// such key). Checks that train_batch = micro x accumulation x data ranks.
struct BatchKeys {
  const char* global;
  const char* micro;
  const char* accumulation;
};
void TranslateBatch(Translation* t, const BatchKeys& keys);

// The number of ranks, and the number of data ranks, by the keys of the job that are set so far.
uint64_t RanksOf(const Translation& t);
uint64_t DataRanksOf(const Translation& t);

// Whether gradients can be reduced before the last micro-batch of a step, by what file and --set say: a data rank has
// several micro-batches, there are several data ranks, and no pipeline. Call it after TranslateBatch.
bool ReducesSeveralTimes(const Translation& t);

// Sets `key` of the job to the value of `canonical_key`, if it is given: a flag, a number or a text.
void SetSame(Translation* t, absl::string_view canonical_key, absl::string_view key);

}  // namespace trainyard::foreign
