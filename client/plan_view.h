// The output of `trainctl plan`, as text and as JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "planner/machines.h"
#include "planner/plan_job.h"

namespace trainyard::client {

// The recommended layout with its reason and its keys, the table of the others, the advice of the decision tree, and
// what was not chosen and why. If nothing fits, what comes nearest. `columns`: see Table (text.h).
std::string PlanText(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools, int columns);

// {"layouts":[{"layout":"fsdp","ranks":8,"step_s":1.5,...,"keys":"..."}],"rejected":[...],"candidates":812,
// "tree":{...},"machines":[...],"notes":[...]}. "nearest" exists if there are no layouts.
nlohmann::ordered_json PlanJson(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools,
                                const std::vector<std::string>& notes);

// "no layout fits: the nearest, fsdp on 8 ranks, needs 90.1 of 75.0 GiB". REQUIRES: the plan has no layouts.
std::string NothingFits(const planner::JobPlan& plan, const std::vector<planner::Pool>& pools);

}  // namespace trainyard::client
