// The format of the outbox on disk (<state>/outbox): a sequence of records that never change, the first of them a
// header. The file is only appended to, or replaced as a whole. Pure functions convert between records and bytes;
// outbox_writer.h accesses the disk.
//
//   record:  length of the payload (4 bytes, little-endian), its checksum (8 bytes, XXH3), the payload (an
//   OutboxRecord)
//
// A crash may leave a torn record at the end, which is cut off: facts are sent only after they are stored, so the fact
// of a torn record was never sent.
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
  v1::OutboxHeader header;            // an empty id: there was no file, or it was unreadable
  std::vector<v1::OutboxFact> facts;  // in order, including acknowledged ones
  uint64_t acked_fact = 0;            // the highest number that the coordinator had acknowledged
  size_t cut_bytes = 0;               // torn or damaged bytes at the end; the next replacement removes them
};

// Possible errors: FailedPrecondition: a newer version of the daemon wrote the file; install that version, or use
// another --state.
absl::StatusOr<OutboxContents> ReadOutboxFile(absl::string_view file);

}  // namespace trainyard::agent
