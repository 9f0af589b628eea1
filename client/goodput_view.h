// Formats how the ranks of a job spent their time, as text and as JSON. Pure.
#pragma once

#include <array>
#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

struct GoodputPart {
  const char* name;     // "train"
  const char* meaning;  // shown in the table
  double seconds;       // of all ranks together
};

// All parts, in the order in which a job goes through them.
std::array<GoodputPart, 8> GoodputParts(const v1::Goodput& goodput);

// The share of time spent on steps that were kept, 0 to 1; 0 if the total is 0.
double GoodputShare(const v1::Goodput& goodput);

// A table of the parts with their shares, their sum and the total; `columns`: see Table.
std::string GoodputText(const v1::Job& job, int columns = 0);

// {"total_s":...,"goodput":0.93,"parts_s":{"queue":...},"shares":{...}}: an object of its own, or a member of a job's
// object.
std::string GoodputJson(const v1::Goodput& goodput);

}  // namespace trainyard::client
