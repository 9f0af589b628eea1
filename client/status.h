// The text of `trainctl status`. Pure.
#pragma once

#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

std::string StatusText(const v1::Job& job);

}  // namespace trainyard::client
