#include "worker/agent/outbox_file.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"

namespace trainyard::agent {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kChecksumBytes = 8;
constexpr size_t kFrameBytes = kLengthBytes + kChecksumBytes;

std::string EncodeLength(absl::string_view payload) {
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) bytes.push_back(static_cast<char>(payload.size() >> (8 * i) & 0xff));
  return bytes;
}

// The checksum covers the length too, so that a wrong length is detected.
std::string ChecksumOf(absl::string_view length, absl::string_view payload) {
  Hasher hasher;
  hasher.Add(length);
  hasher.Add(payload);
  return absl::HexStringToBytes(hasher.Hex().substr(0, 2 * kChecksumBytes));
}

// Removes the first record from `bytes`; returns false if it is torn or damaged.
bool TakeRecord(absl::string_view& bytes, v1::OutboxRecord& record) {
  if (bytes.size() < kFrameBytes) return false;
  size_t size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) size |= size_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  if (size > bytes.size() - kFrameBytes) return false;
  absl::string_view payload = bytes.substr(kFrameBytes, size);
  if (bytes.substr(kLengthBytes, kChecksumBytes) != ChecksumOf(bytes.substr(0, kLengthBytes), payload)) return false;
  if (!record.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) return false;
  bytes.remove_prefix(kFrameBytes + size);
  return true;
}

}  // namespace

std::string EncodeOutboxRecord(const v1::OutboxRecord& record) {
  std::string payload = record.SerializeAsString();
  std::string length = EncodeLength(payload);
  return absl::StrCat(length, ChecksumOf(length, payload), payload);
}

absl::StatusOr<OutboxContents> ReadOutboxFile(absl::string_view file) {
  OutboxContents contents;
  v1::OutboxRecord record;
  for (bool first = true; !file.empty() && TakeRecord(file, record); first = false) {
    // The numbers of facts mean nothing without the header, which contains the id of their outbox.
    if (first && !record.has_header()) break;
    switch (record.kind_case()) {
      case v1::OutboxRecord::kHeader:
        contents.header = record.header();
        break;
      case v1::OutboxRecord::kFact:
        contents.facts.push_back(record.fact());
        break;
      case v1::OutboxRecord::kAckedFact:
        contents.acked_fact = record.acked_fact();
        break;
      default:
        break;  // a newer daemon's kind of record; it may be ignored, because the format's version is the same
    }
  }
  if (contents.header.version() > kOutboxVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the outbox in the state folder has format ", contents.header.version(), ", this daemon reads ",
                     kOutboxVersion, " and older: install the version that wrote it, or give another --state"));
  }
  contents.cut_bytes = file.size();
  return contents;
}

}  // namespace trainyard::agent
