// The version of all programs, which are released together.
#pragma once

namespace trainyard {

inline constexpr char kVersion[] = "0.1.0";
inline constexpr char kTorchVersion[] = "2.11.0";

}  // namespace trainyard
