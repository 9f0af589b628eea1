// The output of `trainctl status`. Pure.
#pragma once

#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// `columns`: see Table.
std::string StatusText(const v1::Job& job, int columns = 0);

}  // namespace trainyard::client
