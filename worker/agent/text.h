// Text from outside (a trainer's output, a library's message) on its way into a protobuf string, which must be UTF-8.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::agent {

// At most `bytes_max` bytes of `text`, whatever is not valid UTF-8 replaced by U+FFFD.
std::string ValidUtf8(absl::string_view text, size_t bytes_max);

}  // namespace trainyard::agent
