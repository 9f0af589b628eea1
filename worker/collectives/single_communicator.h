// The communicator of a world of one: every operation ends immediately, and no socket is opened.
#pragma once

#include <memory>

#include "worker/collectives/communicator.h"

namespace trainyard {

std::unique_ptr<Communicator> NewSingleCommunicator();

}  // namespace trainyard
