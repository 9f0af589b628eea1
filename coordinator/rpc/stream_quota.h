// Limits how many streams for readers (JobService.Watch and Logs) are open, in all and for each address of callers: one
// program that opens streams in a loop would use up the coordinator's memory. Thread-safe.
//
//   ASSIGN_OR_RETURN(StreamQuota::Slot slot, quota.Open(context->peer()));   // the stream keeps the slot until its end
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/error_details.h"
#include "common/escape.h"
#include "common/limits.h"

namespace trainyard {

struct StreamLimits {
  size_t all = limits::kReaderStreams;
  size_t of_address = limits::kReaderStreamsOfAddress;
};

class StreamQuota {
 public:
  // Counts one stream as open until it is destroyed, which may be after the quota was.
  using Slot = std::shared_ptr<void>;

  explicit StreamQuota(StreamLimits largest = {}) : largest_(largest) {}

  // `peer`: the caller as gRPC names it, such as "ipv4:10.0.0.1:4711". Possible errors: ResourceExhausted: there are
  // too many streams.
  absl::StatusOr<Slot> Open(absl::string_view peer) {
    const std::string address = AddressOf(peer);
    absl::MutexLock lock(&counts_->mu);
    const auto known = counts_->by_address.find(address);
    const size_t of_address = known == counts_->by_address.end() ? 0 : known->second;
    if (of_address >= largest_.of_address) {
      return TooMany(absl::StrCat(of_address, " streams of Watch and Logs are open for programs at ",
                                  EscapeText(address), ", and one address can have no more"));
    }
    if (counts_->all >= largest_.all) {
      return TooMany(
          absl::StrCat(counts_->all, " streams of Watch and Logs are open, and the coordinator serves no more"));
    }
    ++counts_->all;
    ++counts_->by_address[address];
    return Slot(nullptr, [counts = counts_, address](void*) { counts->Close(address); });
  }

 private:
  static constexpr absl::Duration kRetryAfter = absl::Seconds(5);

  struct Counts {
    void Close(const std::string& address) {
      absl::MutexLock lock(&mu);
      --all;
      const auto of_address = by_address.find(address);
      if (--of_address->second == 0) by_address.erase(of_address);
    }

    absl::Mutex mu;
    size_t all ABSL_GUARDED_BY(mu) = 0;
    absl::flat_hash_map<std::string, size_t> by_address ABSL_GUARDED_BY(mu);
  };

  // Removes the port, which differs among the connections of one program.
  static std::string AddressOf(absl::string_view peer) {
    const bool has_port = absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:");
    return std::string(has_port ? peer.substr(0, peer.rfind(':')) : peer);
  }
  static absl::Status TooMany(const std::string& what) {
    return AddRetry(AddReason(absl::ResourceExhaustedError(
                                  absl::StrCat(what, ": close streams that are not needed, or try again later")),
                              reasons::kTooManyStreams),
                    kRetryAfter);
  }

  const StreamLimits largest_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace trainyard
