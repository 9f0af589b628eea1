// A host as the API reports it.
#pragma once

#include "coordinator/core/turn.h"

namespace trainyard {

v1::HostStatus MakeHostStatus(const Turn& turn, const Host& host);

}  // namespace trainyard
