// The names of element types in messages: those that users know ("fp32"), not LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>

namespace trainyard {

inline const char* TypeName(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return "fp32";
    case c10::ScalarType::Double:
      return "fp64";
    case c10::ScalarType::Half:
      return "fp16";
    case c10::ScalarType::BFloat16:
      return "bf16";
    default:
      return c10::toString(type);
  }
}

}  // namespace trainyard
