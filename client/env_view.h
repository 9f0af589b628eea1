// The facts of a host as text, as JSON, and as warnings about what will be slow or fail. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/host_facts.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Full sentences, the most important first; each says what will happen or what to do.
std::vector<std::string> WarningsOf(const HostFacts& facts);

// {"versions": {...}, "cpu": {...}, "memory": {...}, "gpu": {...}, ..., "warnings": [...]}. What is not known is null.
nlohmann::ordered_json FactsJson(const HostFacts& facts);

// Sections of aligned rows, then the warnings. `columns` as in Table.
std::string FactsText(const HostFacts& facts, int columns);

// The hosts of a cluster with their inventories, one row each.
std::string InventoryTable(const v1::ListHostsResponse& hosts, int columns);

}  // namespace trainyard::client
