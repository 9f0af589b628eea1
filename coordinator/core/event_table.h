// Every event of the core in one table: its name in metrics, where it comes from and what it means. NameOf (event.h)
// reads the table, and ARCHITECTURE.md prints it. Pure.
#pragma once

#include <string>

#include "absl/types/span.h"

namespace trainyard {

struct EventRow {
  const char* type;     // "SubmitJob"
  const char* name;     // in metrics: "submit_job"
  const char* from;     // "client", "daemon", "timer"
  const char* meaning;  // a sentence without its full stop
};

// The rows, in the order of the variant Event.
absl::Span<const EventRow> EventTable();

// The table in Markdown, for ARCHITECTURE.md.
std::string PrintEvents();

}  // namespace trainyard
