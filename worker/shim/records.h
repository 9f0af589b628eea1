// The files of a rank folder, through which the daemon and the shim speak to each other. Both may be away while the
// other works: the daemon is replaced while the shim lives, the shim is gone before the daemon looks.
//
//   launch      daemon → shim    what to run; the shim keeps it locked (flock) for as long as it lives
//   pid         shim → daemon    shim and trainer, each with its start time, so that a reused pid is not taken for them
//   stdout.log, stderr.log, and the same with ".1"
//                                the trainer's output; the older half is in ".1"
//   exit        shim → daemon    how the trainer ended; its being there means that nothing of the trainer is left
//   told        daemon only      the coordinator knows of the exit
//
// `launch`, `pid` and `exit` are fields `name=value`, each ended by a zero byte; a name may repeat; unknown names are
// skipped, so that a newer daemon and an older shim get on. `pid` and `exit` appear whole, by rename.
//
// Included by the shim, which links nothing but libc: constants only.
#pragma once

namespace trainyard::shim {

inline constexpr char kLaunchFile[] = "launch";
inline constexpr char kPidFile[] = "pid";
inline constexpr char kExitFile[] = "exit";
inline constexpr char kReportedFile[] = "told";
inline constexpr char kStdoutFile[] = "stdout.log";
inline constexpr char kStderrFile[] = "stderr.log";
inline constexpr char kRotatedSuffix[] = ".1";

// launch
inline constexpr char kProgram[] = "program";     // absolute path
inline constexpr char kArgument[] = "argument";   // repeated; the first is argv[0]
inline constexpr char kVariable[] = "variable";   // repeated; NAME=value; there are no others
inline constexpr char kLogBytes[] = "log_bytes";  // of all four log files together

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
inline constexpr char kCauseLost[] = "lost";  // written by a daemon that found the folder without a shim
inline constexpr char kCode[] = "code";
inline constexpr char kSignal[] = "signal";
inline constexpr char kCoreDumped[] = "core_dumped";
inline constexpr char kMessage[] = "message";
inline constexpr char kMayPass[] = "may_pass";  // 1: a start that failed for lack of memory, processes or disk
inline constexpr char kMaxRssBytes[] = "max_rss_bytes";
inline constexpr char kUserMicroseconds[] = "user_us";
inline constexpr char kSystemMicroseconds[] = "system_us";
inline constexpr char kEndedUnixMs[] = "ended_unix_ms";
inline constexpr char kDroppedBytes[] = "dropped_bytes";  // output that could not be written
inline constexpr char kLastLine[] = "last_line";          // repeated, oldest first

inline constexpr unsigned kLastLinesKept = 20;
inline constexpr unsigned kLastLineBytes = 1024;  // of each; a longer one is cut
// Set aside on disk when the trainer starts, so that a disk filled since then cannot swallow the exit record.
inline constexpr unsigned kExitRecordBytes = 32 << 10;
static_assert(kLastLinesKept * (kLastLineBytes + sizeof kLastLine + 1) + 4096 < kExitRecordBytes);

}  // namespace trainyard::shim
