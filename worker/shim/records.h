// The files of a rank folder, through which the daemon and the shim communicate. Neither process needs the other: the
// daemon may be replaced while the shim runs, and the shim may have exited before the daemon reads its files.
//
//   launch      daemon → shim    what to run; the shim keeps it locked (flock) as long as it runs
//   pid         shim → daemon    pids of shim and trainer, each with its start time, which distinguishes a reused pid
//   stdout.log, stderr.log, and the same with ".1"
//                                the trainer's output; the older half is in ".1"
//   exit        shim → daemon    how the trainer ended; written when no process of the trainer is left
//   told        daemon only      the coordinator knows of the exit
//   stopped     daemon only      SIGTERM was sent to the program of a command
//
// `launch`, `pid` and `exit` consist of fields `name=value`, each ended by a zero byte. A name may repeat; unknown
// names are ignored, so that a newer daemon works with an older shim. `pid` and `exit` are renamed into place when
// complete.
//
// The shim, which links only libc, includes this file, so it contains only constants.
#pragma once

namespace trainyard::shim {

inline constexpr char kLaunchFile[] = "launch";
inline constexpr char kPidFile[] = "pid";
inline constexpr char kExitFile[] = "exit";
inline constexpr char kReportedFile[] = "told";  // this name cannot change, because existing rank folders have it
inline constexpr char kStoppedFile[] = "stopped";
inline constexpr char kStdoutFile[] = "stdout.log";
inline constexpr char kStderrFile[] = "stderr.log";
inline constexpr char kRotatedSuffix[] = ".1";

// launch
inline constexpr char kProgram[] = "program";     // absolute path
inline constexpr char kArgument[] = "argument";   // repeated; the first is argv[0]
inline constexpr char kVariable[] = "variable";   // repeated; NAME=value; the complete environment
inline constexpr char kLogBytes[] = "log_bytes";  // of all four log files together
inline constexpr char kWorkdir[] = "workdir";     // where the program runs; none: in the rank folder
// The milliseconds from SIGTERM to SIGKILL. Missing for a trainer, which the daemon asks to leave through the trainer's
// link instead.
inline constexpr char kGraceMs[] = "grace_ms";
inline constexpr char kCpus[] = "cpus";  // the numbers of the CPUs on which the program runs, "0 2"; none: all
inline constexpr char kMemoryBytes[] = "memory_bytes";  // for the daemon alone: command.memory_bytes; none: no limit

inline constexpr unsigned kLaunchBytesMax = 1 << 20;

// pid
inline constexpr char kShimPid[] = "shim_pid";
inline constexpr char kShimStart[] = "shim_start";  // clock ticks since boot: field 22 of /proc/<pid>/stat
inline constexpr char kTrainerPid[] = "trainer_pid";
inline constexpr char kTrainerStart[] = "trainer_start";

// exit
inline constexpr char kCause[] = "cause";  // one of the four below
inline constexpr char kCauseExit[] = "exit";
inline constexpr char kCauseSignal[] = "signal";
inline constexpr char kCauseStartFailed[] = "start_failed";
inline constexpr char kCauseLost[] = "lost";  // written by a daemon that found the folder without a running shim
inline constexpr char kCode[] = "code";
inline constexpr char kSignal[] = "signal";
inline constexpr char kCoreDumped[] = "core_dumped";
inline constexpr char kMessage[] = "message";
// 1: the start failed for lack of memory, processes, file descriptors or disk space.
inline constexpr char kMayPass[] = "may_pass";
inline constexpr char kMaxRssBytes[] = "max_rss_bytes";
inline constexpr char kUserMicroseconds[] = "user_us";
inline constexpr char kSystemMicroseconds[] = "system_us";
inline constexpr char kEndedUnixMs[] = "ended_unix_ms";
inline constexpr char kDroppedBytes[] = "dropped_bytes";  // output that could not be written
inline constexpr char kLastLine[] = "last_line";          // repeated, oldest first

inline constexpr unsigned kLastLinesKept = 20;
inline constexpr unsigned kLastLineBytes = 1024;  // of each; a longer one is cut
// Reserved on disk when the trainer starts, so that the exit record can be written even if the disk is full by then.
inline constexpr unsigned kExitRecordBytes = 32 << 10;
static_assert(kLastLinesKept * (kLastLineBytes + sizeof kLastLine + 1) + 4096 < kExitRecordBytes);

}  // namespace trainyard::shim
