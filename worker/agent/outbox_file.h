// The outbox as it lies on disk (<state>/outbox): records one after another, the first a header, none ever changed; the
// file is only added to, or replaced as a whole. Pure functions from records to bytes and back, so that the disk may be
// real, full, torn or a simulation's.
//
//   record:  length of the payload (4 bytes, little-endian), its checksum (8 bytes, XXH3), the payload (an
//   OutboxRecord)
//
// A crash may leave a torn record at the end: it is cut off, and nothing of it had been sent or acknowledged.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainyard/v1/outbox.pb.h"

namespace trainyard::agent {

inline constexpr char kOutboxFile[] = "outbox";
inline constexpr uint32_t kOutboxVersion = 1;

std::string EncodeOutboxRecord(const v1::OutboxRecord& record);

struct OutboxContents {
  v1::OutboxHeader header;            // an empty id: there was no file, or nothing in it could be read
  std::vector<v1::OutboxFact> facts;  // in order, acknowledged ones too
  uint64_t acked_fact = 0;
  size_t cut_bytes = 0;  // at the end, torn or damaged; they are gone with the next replacement
};

// Possible errors: FailedPrecondition: a newer version of the daemon has written it; install that one, or give this one
// another --state.
absl::StatusOr<OutboxContents> ReadOutboxFile(absl::string_view file);

}  // namespace trainyard::agent
