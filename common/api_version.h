// How programs exchange their versions and the versions of the API that they support: one header in the
// metadata of calls, in both directions. A pair without a common version is refused with a sentence that names both
// programs and what to upgrade. A program that sends no header is accepted: it is not part of Trainyard. Pure.
//
//   trainyard-client: trainctl/0.1.0 api=1-1
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/version.h"

namespace trainyard {

// The headers of a call and of its answer. gRPC requires lower case.
inline constexpr char kClientHeader[] = "trainyard-client";
inline constexpr char kServerHeader[] = "trainyard-server";

// The oldest and the newest version of JobService that this version supports. A new version is needed only for a change
// that programs of the old one would misunderstand; new fields and methods need none.
inline constexpr uint32_t kApi = 1;
inline constexpr uint32_t kOldestApi = 1;
static_assert(kOldestApi <= kApi);

struct ProgramVersion {
  std::string program;  // "trainctl"
  std::string version = kVersion;
  uint32_t oldest_api = kOldestApi;
  uint32_t api = kApi;
};

// "trainctl/0.1.0 api=1-1".
std::string FormatVersion(const ProgramVersion& version);
// Returns nullopt if the text does not have this form.
absl::optional<ProgramVersion> ParseVersion(absl::string_view text);

// Whether two versions differ at most in their last part ("0.1.0" and "0.1.7"), and therefore have the same functions.
bool IsSameRelease(absl::string_view a, absl::string_view b);

// Possible errors: FailedPrecondition (INCOMPATIBLE_VERSION) if there is no version of the API that both support.
absl::Status CheckCompatible(const ProgramVersion& client, const ProgramVersion& server);

// What to report once about a compatible pair; empty if both are of the same release.
std::string DescribeDifference(const ProgramVersion& client, const ProgramVersion& server);

}  // namespace trainyard
