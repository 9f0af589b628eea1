// Formats the queue as text and as JSON. Pure.
#pragma once

#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// A table of the waiting jobs in order, and one of the namespaces below it. `columns`: see Table.
std::string QueueText(const v1::GetQueueResponse& queue, int columns = 0);

// One line: {"event":"queued","position":1,"id":"...",...}.
std::string QueuedJobJson(const v1::QueuedJob& job);
// One line: {"event":"namespace","name":"research",...}. A limit that does not exist is null.
std::string NamespaceJson(const v1::NamespaceUse& use);

}  // namespace trainyard::client
