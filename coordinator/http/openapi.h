// A description of the JSON API in the form of OpenAPI 3.0, made from the descriptors of JobService, for generators of
// clients. Pure.
#pragma once

#include <string>

namespace trainyard {

std::string OpenApiJson();

}  // namespace trainyard
