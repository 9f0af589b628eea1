// The usual advice on which strategies to consider, as a decision by what does not fit into memory and by the speed of
// the links. It does not choose a layout: the cost model does (plan_job.h), and a plan says whether both agree. Pure.
//
//   the model fits on one rank ............................ 1: DDP or ZeRO
//   does not fit, one host ................................ 2: pipeline, ZeRO or tensor
//   even the largest layer does not fit, one host ......... 3: tensor, or ZeRO with recompute and offload
//   does not fit, several hosts, fast links between them .. 4: ZeRO, or pipeline with tensor and DDP
//   does not fit, several hosts, slow links ............... 5: DDP with pipeline, tensor and ZeRO-1
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout.h"

namespace trainyard::planner {

struct TreeFacts {
  uint64_t hosts = 1;
  uint64_t usable_bytes = 0;  // of a rank
  uint64_t whole_bytes = 0;   // what a rank needs that holds the whole model, with micro-batches of one sequence
  uint64_t layer_bytes = 0;   // what a rank needs that holds one layer
  bool fast_inside = true;    // the links within a host
  bool fast_between = false;  // the links between hosts
};

// Families of strategies, which layouts combine.
enum class Strategy { kDdp, kZero, kZero1, kPipeline, kTensor };
// "DDP", "ZeRO", "ZeRO-1", "pipeline", "tensor".
std::string StrategyText(Strategy strategy);

struct TreeAnswer {
  int leaf = 0;  // 1 to 5
  // Alternatives, each a combination of strategies: {{kZero}, {kPipeline, kTensor, kDdp}}.
  std::vector<std::vector<Strategy>> alternatives;
  bool with_memory_savings = false;  // recompute, and offload if that is not enough
  bool prefers_pipeline = false;     // the links are slow, so that a layout without a pipeline is no agreement
  std::string reason;
};

TreeAnswer Decide(const TreeFacts& facts);

// "ZeRO, or pipeline + tensor + DDP".
std::string AlternativesText(const TreeAnswer& answer);

// Whether the layout is one of the alternatives, or a part of a combination. DDP may copy every divided model; the
// other stages of ZeRO are not ZeRO-1.
bool Agrees(const TreeAnswer& answer, const Layout& layout);

}  // namespace trainyard::planner
