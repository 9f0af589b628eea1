#include "worker/trainer/kernel_choice.h"

#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "models/model_description.h"

extern char** environ;

namespace trainyard {
namespace {

constexpr double kClearlyFaster = 1.05;
constexpr absl::Duration kChildLimit = absl::Seconds(10);
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

// Removes the oldest files until at most kMaxFiles are left. Errors are ignored: the files are small.
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

struct Pipe {
  ~Pipe() {
    for (int fd : ends) {
      if (fd >= 0) close(fd);
    }
  }
  int ends[2] = {-1, -1};
};

// Reads the pipe until its end.
absl::StatusOr<std::string> ReadAll(int fd, absl::Time deadline) {
  std::string text;
  while (true) {
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) return absl::DeadlineExceededError("it did not end in time");
    if (poll(&polled, 1, static_cast<int>(left_ms)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "cannot wait for its output");
    }
    if (polled.revents == 0) continue;
    char bytes[256];
    const ssize_t size = read(fd, bytes, sizeof bytes);
    if (size < 0 && errno != EINTR) return ErrnoStatus(errno, "cannot read its output");
    if (size == 0) return text;
    if (size > 0) text.append(bytes, static_cast<size_t>(size));
  }
}

// Runs this program with `argument` and reads the number that it prints.
absl::StatusOr<double> ReadNumberFromChild(const std::string& argument) {
  Pipe pipe;
  if (pipe2(pipe.ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "cannot create a pipe");
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(), argument};
  char* argv[] = {command[0].data(), command[1].data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe.ends[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot start ", command[0]));
  close(std::exchange(pipe.ends[1], -1));
  const absl::StatusOr<std::string> output = ReadAll(pipe.ends[0], absl::Now() + kChildLimit);
  if (!output.ok()) kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  RETURN_IF_ERROR(output.status()) << "while running " << command[0] << " " << argument;
  double number = 0;
  if (absl::SimpleAtod(*output, &number) && number > 0) return number;
  return absl::InternalError(absl::StrCat(command[0], " ", argument, " printed '", *output, "', not a number"));
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
  if (fields.size() == 2 && absl::SimpleAtod(fields[0], &speeds.with_lever) &&
      absl::SimpleAtod(fields[1], &speeds.without) && speeds.with_lever > 0 && speeds.without > 0) {
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
  RETURN_IF_ERROR(WriteFileAtomically(path, absl::StrCat(speeds.with_lever, " ", speeds.without, "\n")));
  RemoveOldFiles(folder);
  return speeds;
}

absl::StatusOr<std::string> KernelSpeedsFolder() {
  std::string base;
  if (const char* state_home = getenv("XDG_STATE_HOME"); state_home != nullptr && *state_home == '/') {
    base = state_home;
  }
  if (const char* home = getenv("HOME"); base.empty() && home != nullptr && *home == '/') {
    base = JoinPath(home, ".local/state");
  }
  if (const passwd* entry = getpwuid(getuid()); base.empty() && entry != nullptr && *entry->pw_dir == '/') {
    base = JoinPath(entry->pw_dir, ".local/state");
  }
  if (base.empty()) return absl::NotFoundError("this user has no home folder");
  return absl::StrCat(base, "/trainyard/kernels");
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

absl::StatusOr<KernelSpeeds> MeasureInChildren(const std::vector<ProductShape>& shapes) {
  const std::string text = ShapesText(shapes);
  absl::StatusOr<double> with_lever = absl::InternalError("it did not run");
  std::thread other([&] { with_lever = ReadNumberFromChild(absl::StrCat("--time-products-with-lever=", text)); });
  const absl::StatusOr<double> without = ReadNumberFromChild(absl::StrCat("--time-products=", text));
  other.join();
  RETURN_IF_ERROR(with_lever.status());
  RETURN_IF_ERROR(without.status());
  return KernelSpeeds{.with_lever = *with_lever, .without = *without};
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
