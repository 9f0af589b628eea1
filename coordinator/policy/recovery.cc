#include "coordinator/policy/recovery.h"

#include <csignal>
#include <cstring>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace trainyard {
namespace {

using Failure = v1::FailureRecord;

constexpr double kGibibyte = 1 << 30;

// Returns ", having used up to 1.21 GiB of memory and 35.2 s of CPU". This shows whether the kernel may have killed the
// process for lack of memory, which the signal alone does not show.
std::string DescribeUsage(const v1::TrainerExited& exit) {
  if (exit.max_rss_bytes() == 0) return "";
  return absl::StrFormat(", having used up to %.2f GiB of memory and %.1f s of CPU",
                         static_cast<double>(exit.max_rss_bytes()) / kGibibyte, exit.user_s() + exit.system_s());
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "unknown" : absl::StrCat("SIG", name);
}

}  // namespace

Failure MakeFailure(Failure::Kind kind, std::string text) {
  Failure failure;
  failure.set_kind(kind);
  failure.set_text(std::move(text));
  return failure;
}

Failure MakeRankFailure(Failure::Kind kind, uint32_t rank, absl::string_view host, absl::string_view what) {
  Failure failure = MakeFailure(kind, absl::StrCat("rank ", rank, " on ", host, " ", what));
  failure.set_rank(rank);
  failure.set_host(std::string(host));
  return failure;
}

std::string DescribeExit(const v1::TrainerExited& exit) {
  switch (exit.cause()) {
    case v1::TrainerExited::CAUSE_EXIT:
      return absl::StrCat("exit code ", exit.code());
    case v1::TrainerExited::CAUSE_SIGNAL:
      return absl::StrCat("killed by signal ", exit.signal(), " (", SignalName(exit.signal()), ")",
                          exit.core_dumped() ? ", core dumped" : "",
                          exit.message().empty() ? "" : absl::StrCat(": ", exit.message()));
    case v1::TrainerExited::CAUSE_START_FAILED:
      return absl::StrCat("could not be started: ", exit.message());
    case v1::TrainerExited::CAUSE_STOPPED:
      return "ended by its daemon";
    default:
      return exit.message().empty() ? "lost: its shim exited without a record" : absl::StrCat("lost: ", exit.message());
  }
}

std::optional<Failure> ClassifyExit(const EndedRank& ended) {
  const v1::TrainerExited& exit = *ended.exit;
  auto fail = [&ended](Failure::Kind kind, absl::string_view what) {
    return MakeRankFailure(kind, ended.rank, ended.host, what);
  };
  switch (exit.cause()) {
    case v1::TrainerExited::CAUSE_EXIT:
      if (exit.code() == kExitDone) {
        if (ended.reported_finished || !ended.was_desired) return std::nullopt;
        if (ended.stopped_unrequested) {
          return fail(Failure::KIND_HOST, "stopped although the job was not cancelled (a SIGTERM?)");
        }
        return fail(Failure::KIND_EXIT, "exited with code 0 before all its steps were made");
      }
      if (ended.is_command) {
        return fail(Failure::KIND_EXIT,
                    absl::StrCat("exited with code ", exit.code(), exit.message().empty() ? "" : ": ", exit.message(),
                                 DescribeUsage(exit)));
      }
      if (exit.code() == kExitRefused) {
        return fail(Failure::KIND_REFUSED,
                    absl::StrCat("refused the job (exit code 2)",
                                 exit.message().empty() ? "" : absl::StrCat(": ", exit.message())));
      }
      if (exit.code() == kExitAborted) {
        return fail(Failure::KIND_ABORTED, "exited because its group was aborted or a peer broke a collective");
      }
      if (exit.code() == kExitCannotRun) {
        return fail(Failure::KIND_START,
                    absl::StrCat("could not be run (exit code 127)",
                                 exit.message().empty() ? "; see its output" : absl::StrCat(": ", exit.message())));
      }
      return fail(Failure::KIND_EXIT, absl::StrCat("exited with code ", exit.code(), DescribeUsage(exit)));
    case v1::TrainerExited::CAUSE_SIGNAL:
      return fail(Failure::KIND_SIGNAL, absl::StrCat("was ", DescribeExit(exit), DescribeUsage(exit)));
    case v1::TrainerExited::CAUSE_START_FAILED:
      if (exit.check_failed()) return fail(Failure::KIND_CHECK, DescribeExit(exit));
      return fail(exit.may_pass() ? Failure::KIND_NO_ROOM : Failure::KIND_START, DescribeExit(exit));
    case v1::TrainerExited::CAUSE_STOPPED:
      if (!ended.was_desired) return std::nullopt;
      return fail(Failure::KIND_HOST, absl::StrCat("was ended by its daemon",
                                                   exit.message().empty() ? "" : absl::StrCat(": ", exit.message())));
    default:
      return fail(Failure::KIND_LOST, absl::StrCat("is ", DescribeExit(exit)));
  }
}

std::string ErrorOf(const v1::TrainerExited& exit) {
  if (exit.cause() != v1::TrainerExited::CAUSE_EXIT || exit.code() == kExitDone) return "";
  for (int i = exit.last_lines_size() - 1; i >= 0; --i) {
    if (!exit.last_lines(i).empty()) return exit.last_lines(i);
  }
  return "";
}

bool IsSameError(absl::string_view a, absl::string_view b) {
  const auto words_of = [](absl::string_view text) {
    std::string words(text);
    std::erase_if(words, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.'; });
    return words;
  };
  return !a.empty() && !b.empty() && words_of(a) == words_of(b);
}

bool CountsAsRestart(Failure::Kind kind) {
  return kind != Failure::KIND_CHECKPOINT && kind != Failure::KIND_NO_ROOM && kind != Failure::KIND_CHECK &&
         kind != Failure::KIND_FENCED;
}

bool IsPermanent(Failure::Kind kind) {
  return kind == Failure::KIND_REFUSED || kind == Failure::KIND_DIGEST || kind == Failure::KIND_UNSAVED ||
         kind == Failure::KIND_LIMIT;
}

bool HasOwnCause(Failure::Kind kind) { return kind != Failure::KIND_ABORTED && kind != Failure::KIND_COLLECTIVE; }

bool IsBetterCause(const Failure& found, const Failure& known) {
  if (IsPermanent(found.kind()) != IsPermanent(known.kind())) return IsPermanent(found.kind());
  // A refusal with a message explains more than the exit code, which arrives later and must not replace it.
  return HasOwnCause(found.kind()) && !HasOwnCause(known.kind());
}

absl::string_view FailureKindName(Failure::Kind kind) {
  switch (kind) {
    case Failure::KIND_EXIT:
      return "exit";
    case Failure::KIND_SIGNAL:
      return "signal";
    case Failure::KIND_START:
      return "start";
    case Failure::KIND_LOST:
      return "lost";
    case Failure::KIND_HOST:
      return "host";
    case Failure::KIND_COLLECTIVE:
      return "collective";
    case Failure::KIND_FORMATION:
      return "formation";
    case Failure::KIND_DIGEST:
      return "digest";
    case Failure::KIND_REFUSED:
      return "refused";
    case Failure::KIND_ABORTED:
      return "aborted";
    case Failure::KIND_HANG:
      return "hang";
    case Failure::KIND_CHECKPOINT:
      return "checkpoint";
    case Failure::KIND_UNSAVED:
      return "unsaved";
    case Failure::KIND_NO_ROOM:
      return "no_room";
    case Failure::KIND_LIMIT:
      return "limit";
    case Failure::KIND_CHECK:
      return "check";
    case Failure::KIND_FENCED:
      return "fenced";
    default:
      return "unknown";
  }
}

RecoveryDecision DecideRecovery(const RecoveryFacts& facts) {
  const Failure& failure = *facts.failure;
  if (IsPermanent(failure.kind())) {
    return {.restart = false, .delay = absl::ZeroDuration(), .reason = failure.text()};
  }
  if (failure.kind() == Failure::KIND_CHECKPOINT) {
    return {.restart = true,
            .delay = absl::ZeroDuration(),
            .reason = absl::StrCat(
                failure.text(),
                "; the job waits for a host that has the checkpoint and the data (not counted as a restart)")};
  }
  const bool depends_on_host = failure.kind() == Failure::KIND_START || failure.kind() == Failure::KIND_CHECK;
  if (depends_on_host && !facts.fits_elsewhere) {
    return {.restart = false,
            .delay = absl::ZeroDuration(),
            .reason = absl::StrCat(failure.text(), "; no other host can run the job")};
  }
  const bool uses_restart = CountsAsRestart(failure.kind());
  if (uses_restart && facts.restarts >= facts.max_restarts) {
    const std::string used = facts.max_restarts == 0 ? "no restart is allowed"
                             : facts.max_restarts == 1
                                 ? "the one restart is used up"
                                 : absl::StrCat("all ", facts.max_restarts, " restarts are used up");
    return {.restart = false,
            .delay = absl::ZeroDuration(),
            .reason = absl::StrCat(failure.text(), "; ", used, " (recovery.max_restarts)")};
  }
  if (const uint32_t same = facts.same_errors + 1; !failure.error().empty() && same >= kSameErrorsMax) {
    return {.restart = false,
            .delay = absl::ZeroDuration(),
            .reason = absl::StrCat(failure.text(), "; the job has failed ", same,
                                   " times in a row with this error before its first step: ", failure.error())};
  }
  absl::Duration delay = absl::ZeroDuration();
  if (facts.failures_without_progress > 0) {
    uint32_t doublings = std::min(facts.failures_without_progress - 1, 10u);
    delay = std::min(absl::Milliseconds(250) * (1 << doublings), absl::Seconds(10));
  }
  const std::string where =
      facts.checkpoint_step.has_value() ? absl::StrCat("step ", *facts.checkpoint_step) : std::string("the beginning");
  const std::string count = uses_restart ? absl::StrCat("restart ", facts.restarts + 1, " of ", facts.max_restarts)
                                         : std::string("not counted as a restart");
  return {.restart = true,
          .delay = delay,
          .reason = absl::StrCat(failure.text(), "; restarting from ", where, " (", count, ")")};
}

}  // namespace trainyard
