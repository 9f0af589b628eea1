// The version of all programs, which are released together.
#pragma once

namespace trainyard {

inline constexpr char kVersion[] = "0.1.0";
// The version of LibTorch that the trainer is built with; cmake/Package.cmake reads it from the next line.
inline constexpr char kTorchVersion[] = "2.11.0";

}  // namespace trainyard
