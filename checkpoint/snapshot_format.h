// The header of a snapshot file; see snapshot.h. Values and pure functions.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace trainyard::snapshot_format {

inline constexpr char kMagic[8] = {'T', 'Y', 'S', 'N', 'A', 'P', '\r', '\n'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint32_t kWriting = 1, kComplete = 2;  // values of Header::state; 0 in a new file
inline constexpr uint64_t kHeaderBytes = 4096;          // the contents follow
inline constexpr uint64_t kIndexBytesMax = uint64_t{256} << 20;
inline constexpr size_t kHashDigits = 32;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t state;
  uint64_t contents_bytes;
  uint64_t index_begin;
  uint64_t index_bytes;
  uint64_t extra_bytes;  // after the index
  uint64_t generation;
  uint64_t step;
  uint64_t world_size;
  uint64_t rank;
  char job_id[72];                // ends with a zero byte
  char index_hash[kHashDigits];   // of the index and the bytes after it
  char header_hash[kHashDigits];  // of all bytes before it
};
static_assert(sizeof(Header) == 8 + 2 * 4 + 8 * 8 + 72 + 2 * kHashDigits && sizeof(Header) <= kHeaderBytes);

inline absl::string_view HashedBytes(const Header& header) {
  return {reinterpret_cast<const char*>(&header), sizeof(Header) - kHashDigits};
}

}  // namespace trainyard::snapshot_format
