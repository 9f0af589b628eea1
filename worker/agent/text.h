// Makes messages valid before they are sent: protobuf strings must be UTF-8.
#pragma once

#include "google/protobuf/message.h"

namespace trainyard::agent {

// Replaces every byte that is not UTF-8, in every string of the message and of its nested messages. A receiver rejects
// the whole message for one such byte, and the daemon would send it again forever.
void MakeValidUtf8(google::protobuf::Message* message);

}  // namespace trainyard::agent
