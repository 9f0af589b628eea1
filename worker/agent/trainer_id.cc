#include "worker/agent/trainer_id.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace trainyard::agent {

TrainerId FromProto(const v1::TrainerKey& key) {
  return {JobId(key.job_id()), Generation(key.generation()), key.rank()};
}

v1::TrainerKey ToProto(const TrainerId& id) {
  v1::TrainerKey key;
  key.set_job_id(id.job.value());
  key.set_generation(id.generation.value());
  key.set_rank(id.rank);
  return key;
}

std::string FolderName(const TrainerId& id) {
  return absl::StrCat(id.job.value(), ".g", id.generation.value(), ".r", id.rank);
}

absl::StatusOr<TrainerId> ParseFolderName(absl::string_view name) {
  std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  uint64_t generation = 0;
  uint32_t rank = 0;
  if (parts.size() != 3 || !CheckJobId(parts[0]).ok() || !absl::ConsumePrefix(&parts[1], "g") ||
      !absl::ConsumePrefix(&parts[2], "r") || !absl::SimpleAtoi(parts[1], &generation) ||
      !absl::SimpleAtoi(parts[2], &rank)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a rank folder (<job>.g<generation>.r<rank>)"));
  }
  return TrainerId{JobId(parts[0]), Generation(generation), rank};
}

std::string Describe(const TrainerId& id) {
  return absl::StrCat("job ", id.job.value(), " generation ", id.generation.value(), " rank ", id.rank);
}

absl::Status CheckJobId(absl::string_view id) {
  bool plain = std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
  if (id.empty() || id.size() > 64 || !plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job id is 1 to 64 letters, digits or '-', not '", id.substr(0, 80), "'"));
  }
  return absl::OkStatus();
}

}  // namespace trainyard::agent
