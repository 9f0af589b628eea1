// The bytes of a spec, and their digest. The coordinator computes both when a job is submitted. Every rank computes the
// digest of the bytes it received and reports it before it trains. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {

// Deterministic: equal specs give equal bytes.
std::string SpecBytes(const v1::JobSpec& spec);

// xxh3-128 as 32 hex digits, most significant first.
std::string SpecDigest(absl::string_view bytes);

}  // namespace trainyard
