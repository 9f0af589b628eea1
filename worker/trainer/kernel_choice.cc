#include "worker/trainer/kernel_choice.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "common/user.h"
#include "common/version.h"
#include "models/model_description.h"

namespace trainyard {
namespace {

constexpr double kClearlyFaster = 1.05;
constexpr char kLockName[] = "lock";
constexpr absl::Duration kLockWait = absl::Seconds(30);  // for another rank that measures

// At most this many files are kept; the oldest are removed.
constexpr size_t kMaxFiles = 256;
// Products of these sizes have the speed of larger ones.
constexpr int64_t kMaxRows = 256, kMaxColumns = 512;

// Describes the first processor: vendor, family, model, stepping, and the flags on which the kernels depend.
std::string CpuDescription() {
  std::ifstream file("/proc/cpuinfo");
  std::string description;
  for (std::string line; std::getline(file, line) && !line.empty();) {
    for (const char* key : {"vendor_id", "cpu family", "model", "stepping"}) {
      if (absl::StartsWith(line, key)) absl::StrAppend(&description, line, "\n");
    }
    if (!absl::StartsWith(line, "flags")) continue;
    for (const absl::string_view flag : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      const bool counts = absl::StartsWith(flag, "avx") || absl::StartsWith(flag, "amx") || flag == "fma";
      if (counts) absl::StrAppend(&description, flag, " ");
    }
  }
  return description;
}

// Removes the oldest files until at most kMaxFiles are left. Ignores errors, because the files are small.
void RemoveOldFiles(const std::filesystem::path& folder) {
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename() != kLockName) files.emplace_back(entry.last_write_time(error), entry.path());
  }
  if (files.size() <= kMaxFiles) return;
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() - kMaxFiles; ++i) std::filesystem::remove(files[i].second, error);
}

// Returns the shape with its sizes limited to those that are timed.
ProductShape Limited(const ProductShape& shape) {
  return {.rows = std::min(shape.rows, kMaxRows),
          .in = std::min(shape.in, kMaxColumns),
          .out = std::min(shape.out, kMaxColumns),
          .count = shape.count};
}

std::string AgreementKey(int rank) { return absl::StrCat("kernels/", rank); }

}  // namespace

std::vector<ProductShape> DefaultShapes() { return {{.rows = 256, .in = 512, .out = 512}}; }

std::vector<ProductShape> ShapesToTime(const ModelSizes& sizes, int64_t rows) {
  std::map<std::pair<int64_t, int64_t>, ProductShape> limited;
  for (const ParameterDescription& parameter : DescribeModel(sizes).parameters) {
    if (parameter.shape.size() != 2 || parameter.use == RootUse::kEmbedding) continue;
    const int64_t in = parameter.shape[0], out = parameter.shape[1];
    const ProductShape shape = Limited({.rows = std::max<int64_t>(rows, 1), .in = in, .out = out, .count = 0});
    // A limited shape represents a larger product, so it counts as several products of the limited size.
    limited.try_emplace({shape.in, shape.out}, shape).first->second.count +=
        (in * out + shape.in * shape.out - 1) / (shape.in * shape.out);
  }
  std::vector<ProductShape> shapes;
  for (const auto& [size, shape] : limited) shapes.push_back(shape);
  const auto work = [](const ProductShape& shape) { return shape.in * shape.out * shape.count; };
  std::stable_sort(shapes.begin(), shapes.end(),
                   [&](const ProductShape& a, const ProductShape& b) { return work(a) > work(b); });
  if (shapes.size() > kMaxShapes) shapes.resize(kMaxShapes);
  return shapes.empty() ? DefaultShapes() : shapes;
}

std::string ShapesText(const std::vector<ProductShape>& shapes) {
  return absl::StrJoin(shapes, ",", [](std::string* out, const ProductShape& shape) {
    absl::StrAppend(out, shape.rows, "x", shape.in, "x", shape.out, "x", shape.count);
  });
}

absl::StatusOr<std::vector<ProductShape>> ParseShapes(absl::string_view text) {
  std::vector<ProductShape> shapes;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> fields = absl::StrSplit(part, 'x');
    ProductShape shape;
    const bool is_valid = fields.size() == 4 && absl::SimpleAtoi(fields[0], &shape.rows) &&
                          absl::SimpleAtoi(fields[1], &shape.in) && absl::SimpleAtoi(fields[2], &shape.out) &&
                          absl::SimpleAtoi(fields[3], &shape.count) && shape.rows > 0 && shape.in > 0 &&
                          shape.out > 0 && shape.count > 0;
    if (!is_valid || !(Limited(shape) == shape) || shapes.size() == kMaxShapes) {
      return absl::InvalidArgumentError(absl::StrCat("'", text.substr(0, 80), "' is not a list of at most ", kMaxShapes,
                                                     " shapes ROWSxINxOUTxCOUNT with at most ", kMaxRows, " rows and ",
                                                     kMaxColumns, " columns"));
    }
    shapes.push_back(shape);
  }
  return shapes;
}

bool LeverIsFaster(const KernelSpeeds& speeds, bool expected) {
  return expected ? speeds.without < kClearlyFaster * speeds.with_lever
                  : speeds.with_lever >= kClearlyFaster * speeds.without;
}

absl::StatusOr<KernelSpeeds> ReadKernelSpeeds(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, 4096));
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  KernelSpeeds speeds;
  const bool has_time = fields.size() == 3;  // files of earlier versions have none
  if ((fields.size() == 2 || has_time) && absl::SimpleAtod(fields[0], &speeds.with_lever) &&
      absl::SimpleAtod(fields[1], &speeds.without) && speeds.with_lever > 0 && speeds.without > 0 &&
      (!has_time || (absl::SimpleAtod(fields[2], &speeds.measured_ms) && speeds.measured_ms >= 0))) {
    return speeds;
  }
  return absl::InternalError(absl::StrCat(path, " does not hold two speeds"));
}

absl::StatusOr<KernelSpeeds> LoadOrMeasure(const std::string& path,
                                           const std::function<absl::StatusOr<KernelSpeeds>()>& measure) {
  if (absl::StatusOr<KernelSpeeds> stored = ReadKernelSpeeds(path); stored.ok()) return stored;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  RETURN_IF_ERROR(MakeFolders(folder.parent_path().parent_path()));
  for (const std::string& missing : {folder.parent_path().string(), folder.string()}) {
    if (mkdir(missing.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("cannot create ", missing));
    }
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock, FileLock::Acquire(folder / kLockName, kLockWait));
  if (absl::StatusOr<KernelSpeeds> stored = ReadKernelSpeeds(path); stored.ok())
    return stored;  // another rank was first
  ASSIGN_OR_RETURN(const KernelSpeeds speeds, measure());
  RETURN_IF_ERROR(
      WriteFileAtomically(path, absl::StrCat(speeds.with_lever, " ", speeds.without, " ", speeds.measured_ms, "\n")));
  RemoveOldFiles(folder);
  return speeds;
}

absl::StatusOr<std::string> KernelSpeedsFolder() {
  ASSIGN_OR_RETURN(const std::string state, UserStateFolder());
  return JoinPath(state, "trainyard/kernels");
}

std::string CpuKey() {
  return HashHex(absl::StrCat(kVersion, " ", kTorchVersion, "\n", CpuDescription())).substr(0, 16);
}

std::string KernelSpeedsName(absl::string_view cpu_key, const std::vector<ProductShape>& shapes) {
  return absl::StrCat(cpu_key, "-", HashHex(ShapesText(shapes)).substr(0, 16));
}

std::vector<KernelSpeeds> ReadAllKernelSpeeds(const std::string& folder, absl::string_view cpu_key) {
  std::vector<KernelSpeeds> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!absl::StartsWith(entry.path().filename().string(), absl::StrCat(cpu_key, "-"))) continue;
    if (absl::StatusOr<KernelSpeeds> speeds = ReadKernelSpeeds(entry.path()); speeds.ok()) all.push_back(*speeds);
  }
  return all;
}

absl::StatusOr<bool> AgreeOnLever(KeyValueStore& values, int rank, absl::string_view cpu_key, bool own_choice,
                                  absl::Duration limit) {
  const std::string own = absl::StrCat(cpu_key, own_choice ? " on" : " off");
  RETURN_IF_ERROR(values.Put(AgreementKey(rank), own));
  if (cpu_key.empty()) return own_choice;
  for (int other = 0; other < rank; ++other) {
    ASSIGN_OR_RETURN(const std::string text, values.Get(AgreementKey(other), limit));
    absl::string_view choice = text;
    if (absl::ConsumePrefix(&choice, absl::StrCat(cpu_key, " "))) return choice == "on";
  }
  return own_choice;
}

}  // namespace trainyard
