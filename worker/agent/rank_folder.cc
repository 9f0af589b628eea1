#include "worker/agent/rank_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/plain_text.h"
#include "common/status_macros.h"
#include "worker/shim/records.h"

namespace trainyard::agent {
namespace {

constexpr uint64_t kRecordBytesMax = 1 << 20;
// Every rank of a command has the first of these variables; a rank that may report also has the second.
constexpr char kErrorFileAssignment[] = "TORCHELASTIC_ERROR_FILE=";
constexpr char kLinkAssignment[] = "TRAINYARD_LINK=";

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string EncodeFields(const Fields& fields) {
  std::string data;
  for (const auto& [name, value] : fields) {
    absl::StrAppend(&data, name, "=", value);
    data.push_back('\0');
  }
  return data;
}

absl::StatusOr<Fields> ReadFields(const std::string& folder, const char* file) {
  std::string path = JoinPath(folder, file);
  ASSIGN_OR_RETURN(std::string data, ReadFile(path, kRecordBytesMax));
  if (data.empty() || data.back() != '\0') return absl::DataLossError(absl::StrCat(path, " is not a whole record"));
  data.pop_back();
  Fields fields;
  for (absl::string_view field : absl::StrSplit(data, '\0')) {
    size_t equals = field.find('=');
    if (equals == absl::string_view::npos) return absl::DataLossError(absl::StrCat(path, " holds a field without '='"));
    fields.emplace_back(field.substr(0, equals), field.substr(equals + 1));
  }
  return fields;
}

uint64_t Number(const std::string& text) {
  uint64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

std::vector<uint32_t> Numbers(const std::string& text) {
  std::vector<uint32_t> numbers;
  for (absl::string_view number : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    numbers.push_back(static_cast<uint32_t>(Number(std::string(number))));
  }
  return numbers;
}

void AddLastLine(v1::TrainerExited& exited, absl::string_view line) {
  if (exited.last_lines_size() < static_cast<int>(limits::kLastLines)) {
    exited.add_last_lines(ValidUtf8(line, shim::kLastLineBytes));
  }
}

// Returns the last lines of a trainer's output, for an exit whose shim could not record them.
std::vector<std::string> LastLinesOf(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  absl::Cleanup close_fd = [fd] { close(fd); };
  std::string data(16 << 10, '\0');
  off_t size = lseek(fd, 0, SEEK_END);
  off_t from = std::max<off_t>(0, size - static_cast<off_t>(data.size()));
  ssize_t n = pread(fd, data.data(), data.size(), from);
  data.resize(n > 0 ? static_cast<size_t>(n) : 0);
  if (!data.empty() && data.back() == '\n') data.pop_back();
  if (data.empty()) return {};
  std::vector<std::string> lines = absl::StrSplit(data, '\n');
  size_t kept = std::min(lines.size(), limits::kLastLines / 2);
  return {lines.end() - static_cast<ptrdiff_t>(kept), lines.end()};
}

// Creates the empty file `name`, whose existence is the mark. It is not synced, because a crash of the host that loses
// it does no harm: without kReportedFile, the exit is reported twice; a command that the crash has ended has no exit
// record that could be misread without kStoppedFile.
absl::Status MakeMark(const std::string& folder, const char* name) {
  const std::string path = JoinPath(folder, name);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", path));
  close(fd);
  return absl::OkStatus();
}

}  // namespace

absl::Status MakeRankFolder(const std::string& folder, const LaunchRecord& launch) {
  Fields fields = {{shim::kProgram, launch.program}, {shim::kLogBytes, absl::StrCat(launch.log_bytes)}};
  if (!launch.workdir.empty()) fields.emplace_back(shim::kWorkdir, launch.workdir);
  if (launch.grace.has_value()) {
    fields.emplace_back(shim::kGraceMs, absl::StrCat(absl::ToInt64Milliseconds(*launch.grace)));
  }
  if (!launch.cpus.empty()) fields.emplace_back(shim::kCpus, absl::StrJoin(launch.cpus, " "));
  if (launch.memory_bytes > 0) fields.emplace_back(shim::kMemoryBytes, absl::StrCat(launch.memory_bytes));
  for (const std::string& argument : launch.arguments) fields.emplace_back(shim::kArgument, argument);
  for (const std::string& variable : launch.variables) fields.emplace_back(shim::kVariable, variable);
  for (const auto& [name, value] : fields) {
    // A zero byte would end the field, and let the value forge another field.
    if (value.find('\0') == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat("the trainer cannot be started: its ", name, " '",
                                                   absl::CHexEscape(value), "' holds a zero byte"));
  }
  std::string data = EncodeFields(fields);
  if (data.size() >= shim::kLaunchBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the trainer cannot be started: its arguments and environment have ",
                                                   data.size(), " bytes; at most ", shim::kLaunchBytesMax,
                                                   " are supported"));
  }

  if (mkdir(folder.c_str(), 0755) != 0) return ErrnoStatus(errno, absl::StrCat("cannot make rank folder ", folder));
  std::string path = JoinPath(folder, shim::kLaunchFile);
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot create ", path));
  absl::Cleanup close_fd = [fd] { close(fd); };
  ssize_t n = write(fd, data.data(), data.size());
  if (n == static_cast<ssize_t>(data.size())) return absl::OkStatus();
  return ErrnoStatus(n < 0 ? errno : ENOSPC, absl::StrCat("cannot write ", path));
}

absl::StatusOr<LaunchRecord> ReadLaunch(const std::string& folder) {
  ASSIGN_OR_RETURN(Fields fields, ReadFields(folder, shim::kLaunchFile));
  LaunchRecord launch;
  for (auto& [name, value] : fields) {
    if (name == shim::kProgram) launch.program = value;
    if (name == shim::kArgument) launch.arguments.push_back(value);
    if (name == shim::kVariable) launch.variables.push_back(value);
    if (name == shim::kWorkdir) launch.workdir = value;
    if (name == shim::kCpus) launch.cpus = Numbers(value);
    if (name == shim::kMemoryBytes) launch.memory_bytes = Number(value);
    if (name == shim::kGraceMs) launch.grace = absl::Milliseconds(Number(value));
    if (name == shim::kLogBytes) launch.log_bytes = Number(value);
  }
  return launch;
}

absl::StatusOr<PidRecord> ReadPids(const std::string& folder) {
  ASSIGN_OR_RETURN(Fields fields, ReadFields(folder, shim::kPidFile));
  std::map<std::string, uint64_t> numbers;
  for (const auto& [name, value] : fields) numbers[name] = Number(value);
  PidRecord pids;
  pids.shim = {static_cast<pid_t>(numbers[shim::kShimPid]), numbers[shim::kShimStart]};
  pids.trainer = {static_cast<pid_t>(numbers[shim::kTrainerPid]), numbers[shim::kTrainerStart]};
  if (pids.shim.pid <= 1 || pids.trainer.pid <= 1) {
    return absl::DataLossError(absl::StrCat(folder, "/", shim::kPidFile, " names no processes"));
  }
  return pids;
}

absl::StatusOr<v1::TrainerExited> ReadExit(const std::string& folder) {
  ASSIGN_OR_RETURN(Fields fields, ReadFields(folder, shim::kExitFile));
  v1::TrainerExited exited;
  uint64_t dropped_bytes = 0;
  for (const auto& [name, value] : fields) {
    if (name == shim::kCause && value == shim::kCauseLost) return LostExit(folder);
    if (name == shim::kCause && value == shim::kCauseExit) exited.set_cause(v1::TrainerExited::CAUSE_EXIT);
    if (name == shim::kCause && value == shim::kCauseSignal) exited.set_cause(v1::TrainerExited::CAUSE_SIGNAL);
    if (name == shim::kCause && value == shim::kCauseStartFailed) {
      exited.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
    }
    if (name == shim::kCode) exited.set_code(static_cast<int32_t>(Number(value)));
    if (name == shim::kSignal) exited.set_signal(static_cast<int32_t>(Number(value)));
    if (name == shim::kCoreDumped) exited.set_core_dumped(value == "1");
    if (name == shim::kMessage) exited.set_message(ValidUtf8(value, 4096));
    if (name == shim::kMayPass) exited.set_may_pass(value == "1");
    if (name == shim::kMaxRssBytes) exited.set_max_rss_bytes(Number(value));
    if (name == shim::kUserMicroseconds) exited.set_user_s(static_cast<double>(Number(value)) * 1e-6);
    if (name == shim::kSystemMicroseconds) exited.set_system_s(static_cast<double>(Number(value)) * 1e-6);
    if (name == shim::kDroppedBytes) dropped_bytes = Number(value);
    if (name == shim::kLastLine) AddLastLine(exited, value);
  }
  if (exited.cause() == v1::TrainerExited::CAUSE_UNSPECIFIED) {
    return absl::DataLossError(absl::StrCat(folder, "/", shim::kExitFile, " names no cause that is known here"));
  }
  if (dropped_bytes > 0) {
    absl::StrAppend(exited.mutable_message(), exited.message().empty() ? "" : "; ", dropped_bytes,
                    " bytes of its output could not be written");
  }
  return exited;
}

v1::TrainerExited LostExit(const std::string& folder) {
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_LOST);
  exited.set_message("its shim ended without an exit record (killed, or the host was restarted)");
  for (const char* file : {shim::kStdoutFile, shim::kStderrFile}) {
    for (const std::string& line : LastLinesOf(JoinPath(folder, file))) AddLastLine(exited, line);
  }
  return exited;
}

absl::Status WriteStartFailure(const std::string& folder, const absl::Status& why) {
  return WriteFileAtomically(JoinPath(folder, shim::kExitFile),
                             EncodeFields({{shim::kCause, shim::kCauseStartFailed},
                                           {shim::kMessage, ValidUtf8(why.message(), 4096)},
                                           {shim::kMayPass, absl::IsResourceExhausted(why) ? "1" : "0"}}));
}

absl::Status MarkFolderReported(const std::string& folder) { return MakeMark(folder, shim::kReportedFile); }

bool IsFolderReported(const std::string& folder) { return FileExists(JoinPath(folder, shim::kReportedFile)); }

absl::Status MarkFolderStopped(const std::string& folder) { return MakeMark(folder, shim::kStoppedFile); }

bool IsFolderStopped(const std::string& folder) { return FileExists(JoinPath(folder, shim::kStoppedFile)); }

bool CloseUnlessShimRuns(const std::string& folder) {
  int fd = open(JoinPath(folder, shim::kLaunchFile).c_str(), O_RDONLY | O_CLOEXEC);
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) return false;
  // The record is written under the lock: a shim that is about to start finds either the lock held or this record, and
  // starts nothing in either case.
  std::string path = JoinPath(folder, shim::kExitFile);
  if (!FileExists(path)) WriteFileAtomically(path, EncodeFields({{shim::kCause, shim::kCauseLost}})).IgnoreError();
  return true;
}

std::vector<TrainerId> ListRankFolders(const std::string& ranks) {
  std::vector<std::pair<std::filesystem::file_time_type, TrainerId>> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(ranks, error)) {
    absl::StatusOr<TrainerId> id = ParseFolderName(entry.path().filename().string());
    std::error_code gone;
    auto changed = entry.last_write_time(gone);
    if (id.ok() && !gone) found.emplace_back(changed, *id);
  }
  std::sort(found.begin(), found.end());
  std::vector<TrainerId> ids;
  for (auto& [changed, id] : found) ids.push_back(std::move(id));
  return ids;
}

std::set<std::string> LinksOfTrainers(const std::string& ranks) {
  std::set<std::string> links;
  for (const TrainerId& id : ListRankFolders(ranks)) {
    // A check (command.check) dials no daemon, and its arguments belong to the user.
    if (id.rank == kCheckRank) continue;
    const std::string folder = JoinPath(ranks, FolderName(id));
    absl::StatusOr<LaunchRecord> launch = ReadLaunch(folder);
    if (!launch.ok() || IsFolderReported(folder)) continue;
    bool is_command = false;
    for (absl::string_view variable : launch->variables) {
      if (absl::ConsumePrefix(&variable, kLinkAssignment)) links.insert(std::string(variable));
      is_command = is_command || absl::StartsWith(variable, kErrorFileAssignment);
    }
    // The arguments of a command belong to the user, so the flag is not searched for among them.
    for (size_t i = 0; !is_command && i + 1 < launch->arguments.size(); ++i) {
      if (launch->arguments[i] == kLinkFlag) links.insert(launch->arguments[i + 1]);
    }
  }
  return links;
}

FolderLimits FolderLimitsFor(uint32_t slots, uint64_t log_bytes_per_rank) {
  FolderLimits limits;
  limits.bytes = std::max(limits.bytes, 2 * slots * log_bytes_per_rank);
  return limits;
}

RankFolders PruneRankFolders(const std::string& ranks, const FolderLimits& limits) {
  RankFolders all;
  std::vector<std::pair<std::string, uint64_t>> reported;  // paths and sizes
  uint64_t reported_bytes = 0;
  for (const TrainerId& id : ListRankFolders(ranks)) {
    std::string folder = JoinPath(ranks, FolderName(id));
    uint64_t size = 0;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      std::error_code gone;
      uint64_t file_size = entry.file_size(gone);
      if (!gone) size += file_size;
    }
    ++all.count;
    all.bytes += size;
    if (!IsFolderReported(folder)) continue;
    reported_bytes += size;
    reported.emplace_back(std::move(folder), size);
  }
  size_t count = reported.size();
  for (const auto& [folder, size] : reported) {
    if (count <= limits.folders && reported_bytes <= limits.bytes) break;
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    --count;
    reported_bytes -= size;
    --all.count;
    all.bytes -= size;
  }
  return all;
}

}  // namespace trainyard::agent
