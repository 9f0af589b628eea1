// The state of a strategy as whole tensors under the parameters' own names, whatever the sharding: what a checkpoint
// holds, so that every layout can load every other's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/flat_group.h"

namespace trainyard {

// As the functions of the same names in data_parallel.h.
std::vector<StateEntry> StateEntriesOf(const Model& model, const FlatGroups& groups);
absl::Status VisitStateOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                          StateVisitor visit);
absl::Status VisitParametersOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                               StateVisitor visit);
// `witnessed`: as VisitWitnessedState, else as VisitLocalState.
absl::Status VisitLocalStateOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                               bool witnessed, RangeVisitor visit);
absl::Status LoadStateInto(const Model& model, const FlatGroups& groups, RangeSource source);
absl::StatusOr<std::vector<NamedHash>> HashParametersOf(const Model& model, const FlatGroups& groups,
                                                        const MeshCommunicators& communicators);
absl::StatusOr<std::optional<ParameterDifference>> CompareParametersOf(const Model& model, const FlatGroups& groups,
                                                                       const MeshCommunicators& communicators);

}  // namespace trainyard
