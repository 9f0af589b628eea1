// Where the time of a job's ranks went, as people and programs see it. Pure.
#pragma once

#include <array>
#include <string>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

struct GoodputPart {
  const char* name;     // "train"
  const char* meaning;  // for people
  double seconds;       // of all ranks together
};

// All parts, in the order of a job's life.
std::array<GoodputPart, 8> GoodputParts(const v1::Goodput& goodput);

// The share of the time in which steps that count were made, 0 to 1; 0 of no time at all.
double GoodputShare(const v1::Goodput& goodput);

// A table of the parts with their shares, and their sum next to the whole; `columns`: see Table.
std::string GoodputText(const v1::Job& job, int columns = 0);

// {"total_s":...,"goodput":0.93,"parts_s":{"queue":...},"shares":{...}}: as an object of its own, and in those of jobs.
std::string GoodputJson(const v1::Goodput& goodput);

}  // namespace trainyard::client
