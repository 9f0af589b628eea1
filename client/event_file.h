// Event files of TensorBoard, with scalars only: records of TFRecord (length, its checksum, data, its checksum), each
// with a message Event (tensorboard/compat/proto/event.proto), of which only the fields that are needed are encoded
// here.
//
//   ASSIGN_OR_RETURN(auto file, EventFileWriter::Create(path, start));
//   RETURN_IF_ERROR(file->Add(time, 17, {{"train/loss", 3.2}}));
//   RETURN_IF_ERROR(file->Commit());   // without it, the file does not appear
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard::client {

// CRC-32C (Castagnoli) as TFRecord stores it: rotated and with a constant added.
uint32_t MaskedCrc32c(absl::string_view data);

// `data` as a record of such a file.
std::string TfRecord(absl::string_view data);

using Scalars = std::vector<std::pair<std::string, double>>;  // by tag

// An encoded Event.
std::string EncodeEvent(absl::Time time, uint64_t step, const Scalars& scalars);

class EventFileWriter {
 public:
  // Writes to a temporary file next to `path`; the folder must exist. Possible errors: those of creating a file.
  static absl::StatusOr<std::unique_ptr<EventFileWriter>> Create(const std::string& path, absl::Time start);
  ~EventFileWriter();  // removes the temporary file, unless Commit has renamed it
  EventFileWriter(const EventFileWriter&) = delete;
  EventFileWriter& operator=(const EventFileWriter&) = delete;

  // Possible errors: ResourceExhausted: the disk is full; other errors of writing.
  absl::Status Add(absl::Time time, uint64_t step, const Scalars& scalars);
  // Gives the file its name, and replaces an earlier file of that name.
  absl::Status Commit();

 private:
  EventFileWriter(int fd, std::string temporary, std::string path)
      : fd_(fd), temporary_(std::move(temporary)), path_(std::move(path)) {}
  absl::Status Flush();

  int fd_;
  const std::string temporary_, path_;
  std::string pending_;
};

}  // namespace trainyard::client
