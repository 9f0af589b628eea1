// Text from outside (a trainer's output, a library's message) on its way into a protobuf string, which must be UTF-8.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace trainyard::agent {

// At most `bytes_max` bytes of `text`, whatever is not valid UTF-8 replaced by U+FFFD.
std::string ValidUtf8(absl::string_view text, size_t bytes_max);

// The same for every string in the message: whoever receives it refuses it as a whole for one byte that is not UTF-8,
// and a daemon would send it again for ever.
void MakeValidUtf8(google::protobuf::Message* message);

}  // namespace trainyard::agent
