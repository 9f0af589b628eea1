// The role of a tensor in the state of a run: which of a parameter's tensors it is. Checkpoints store these names.
// Header-only.
#pragma once

namespace trainyard {

inline constexpr char kParameterRole[] = "parameter";
// The moments of AdamW.
inline constexpr char kFirstMomentRole[] = "exp_avg";
inline constexpr char kSecondMomentRole[] = "exp_avg_sq";
// A copy of a parameter in a narrower type, for other programs. No job resumes from it.
inline constexpr char kCopyRole[] = "copy";

}  // namespace trainyard
