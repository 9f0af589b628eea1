// Exit codes of our programs. Scripts, the coordinator and the worker daemon rely on the numbers. Header-only.
#pragma once

namespace trainyard {

// The exit codes of a trainer. docs/decisions/0001-spine.md says what the coordinator does after each; every other code
// is a failure of that rank.
enum TrainerExit : int {
  kExitDone = 0,     // made all steps, or stopped on request
  kExitFailed = 1,   // a failure of this rank
  kExitRefused = 2,  // the job cannot run as it is written
  kExitAborted = 3,  // the generation was ended, or a peer broke a collective: not a failure of this rank
  // This host cannot run the rank, but another host may be able to: a library is missing (the dynamic loader exits with
  // this code), no GPU works, or a checkpoint cannot be read. The last line of the output says why.
  kExitCannotRun = 127,
};

// The exit codes of trainctl. The daemons use the first three of them.
enum ClientExit : int {
  kClientDone = 0,
  kClientFailed = 1,
  kClientBadInput = 2,
  kClientUnreachable = 3,
  kClientCancelled = 130,  // the code that shells report for a program that Ctrl-C ended
};

}  // namespace trainyard
