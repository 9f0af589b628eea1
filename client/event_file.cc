#include "client/event_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr size_t kPendingBytes = 256 << 10;
// The version of the format. TensorBoard orders the events of a file without a version as an older format requires.
constexpr char kFileVersion[] = "brain.Event:2";

// Field numbers and wire types of protobuf: number << 3 | type, where type 0 is a varint, 1 has 8 bytes, 2 has a length
// and 5 has 4 bytes.
enum WireKey : uint8_t {
  kEventTime = 1 << 3 | 1,
  kEventStep = 2 << 3 | 0,
  kEventVersion = 3 << 3 | 2,
  kEventSummary = 5 << 3 | 2,
  kSummaryValue = 1 << 3 | 2,
  kValueTag = 1 << 3 | 2,
  kValueNumber = 2 << 3 | 5,
};

template <typename Number>
void AppendLittleEndian(Number number, std::string* out) {
  for (size_t i = 0; i < sizeof number; ++i) out->push_back(static_cast<char>(number >> (8 * i) & 0xFF));
}

void AppendVarint(uint64_t number, std::string* out) {
  for (; number >= 0x80; number >>= 7) out->push_back(static_cast<char>((number & 0x7F) | 0x80));
  out->push_back(static_cast<char>(number));
}

void AppendBytes(WireKey key, absl::string_view bytes, std::string* out) {
  out->push_back(static_cast<char>(key));
  AppendVarint(bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

std::string EventStart(absl::Time time) {
  std::string event(1, static_cast<char>(kEventTime));
  AppendLittleEndian(std::bit_cast<uint64_t>(absl::ToDoubleSeconds(time - absl::UnixEpoch())), &event);
  return event;
}

constexpr std::array<uint32_t, 256> CrcTable() {
  constexpr uint32_t kCastagnoli = 0x82F63B78;  // the polynomial with its bits reversed
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ kCastagnoli : crc >> 1;
    table[i] = crc;
  }
  return table;
}

}  // namespace

uint32_t MaskedCrc32c(absl::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = CrcTable();
  constexpr uint32_t kMaskDelta = 0xA282EAD8;
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return std::rotr(~crc, 15) + kMaskDelta;
}

std::string TfRecord(absl::string_view data) {
  std::string record;
  AppendLittleEndian(uint64_t{data.size()}, &record);
  AppendLittleEndian(MaskedCrc32c(record), &record);
  record.append(data.data(), data.size());
  AppendLittleEndian(MaskedCrc32c(data), &record);
  return record;
}

std::string EncodeEvent(absl::Time time, uint64_t step, const Scalars& scalars) {
  std::string summary, value;
  for (const auto& [tag, number] : scalars) {
    value.clear();
    AppendBytes(kValueTag, tag, &value);
    value.push_back(static_cast<char>(kValueNumber));
    AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(number)), &value);
    AppendBytes(kSummaryValue, value, &summary);
  }
  std::string event = EventStart(time);
  event.push_back(static_cast<char>(kEventStep));
  AppendVarint(step, &event);
  AppendBytes(kEventSummary, summary, &event);
  return event;
}

absl::StatusOr<std::unique_ptr<EventFileWriter>> EventFileWriter::Create(const std::string& path, absl::Time start) {
  // TensorBoard ignores files whose names do not contain "tfevents", so it does not read the temporary file.
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string temporary = (folder / absl::StrCat(".trainctl-", getpid(), ".tmp")).string();
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", temporary));
  std::unique_ptr<EventFileWriter> writer(new EventFileWriter(fd, temporary, path));
  std::string version = EventStart(start);
  AppendBytes(kEventVersion, kFileVersion, &version);
  writer->pending_ = TfRecord(version);
  return writer;
}

EventFileWriter::~EventFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

absl::Status EventFileWriter::Add(absl::Time time, uint64_t step, const Scalars& scalars) {
  pending_ += TfRecord(EncodeEvent(time, step, scalars));
  return pending_.size() < kPendingBytes ? absl::OkStatus() : Flush();
}

absl::Status EventFileWriter::Flush() {
  for (size_t written = 0; written < pending_.size();) {
    const ssize_t n = write(fd_, pending_.data() + written, pending_.size() - written);
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("cannot write ", temporary_));
    }
  }
  pending_.clear();
  return absl::OkStatus();
}

absl::Status EventFileWriter::Commit() {
  RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat("cannot sync ", temporary_));
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot rename ", temporary_, " to ", path_));
  }
  close(fd_);
  fd_ = -1;
  return absl::OkStatus();
}

}  // namespace trainyard::client
