#include "spec/command_rules.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard {
namespace {

constexpr size_t kQuotedBytes = 80;
// The worker daemon sets these for each rank, with torchrun's meaning.
constexpr absl::string_view kLauncherVariables[] = {"RANK",
                                                    "LOCAL_RANK",
                                                    "WORLD_SIZE",
                                                    "LOCAL_WORLD_SIZE",
                                                    "GROUP_RANK",
                                                    "GROUP_WORLD_SIZE",
                                                    "ROLE_RANK",
                                                    "ROLE_WORLD_SIZE",
                                                    "MASTER_ADDR",
                                                    "MASTER_PORT",
                                                    "TORCHELASTIC_RESTART_COUNT",
                                                    "TORCHELASTIC_MAX_RESTARTS",
                                                    "TORCHELASTIC_RUN_ID",
                                                    "TORCHELASTIC_USE_AGENT_STORE",
                                                    "TORCHELASTIC_ERROR_FILE"};

bool IsVariableName(absl::string_view name) {
  return !name.empty() && !absl::ascii_isdigit(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

void CheckVariables(const v1::Command& command, const Positions& positions, Problems* problems) {
  std::set<absl::string_view> seen;
  for (const std::string& variable : command.env()) {
    const absl::string_view text = variable;
    const size_t equals = text.find('=');
    const absl::string_view name = text.substr(0, equals);
    const std::string quoted = absl::StrCat("'", name.substr(0, kQuotedBytes), "'");
    const auto& reserved = kLauncherVariables;
    if (equals == absl::string_view::npos || !IsVariableName(name)) {
      problems->AddError(positions, "command.env",
                         absl::StrCat("expected NAME=value, with a name of letters, digits and '_'; found ", quoted,
                                      equals == absl::string_view::npos ? " without '='" : ""));
    } else if (std::find(std::begin(reserved), std::end(reserved), name) != std::end(reserved)) {
      problems->AddError(positions, "command.env",
                         absl::StrCat("sets ", name, ", which the worker daemon sets for each rank; remove it"));
    } else if (absl::StartsWith(name, "TRAINYARD_")) {
      problems->AddError(positions, "command.env",
                         absl::StrCat("sets ", quoted,
                                      "; names that begin with TRAINYARD_ are set by the worker daemon; "
                                      "remove it"));
    } else if (!seen.insert(name).second) {
      problems->AddError(positions, "command.env", absl::StrCat("sets ", name.substr(0, kQuotedBytes), " twice"));
    }
  }
}

// Every host of a job runs command.ranks_per_host ranks, so this number must divide resources.ranks and min_ranks.
void CheckRanks(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  const v1::Command& command = spec.command();
  const uint32_t ranks = spec.resources().has_ranks() ? spec.resources().ranks() : 1;
  const uint32_t per_host = command.ranks_per_host();
  if (per_host > 0 && ranks % per_host != 0) {
    problems->AddError(positions, "command.ranks_per_host",
                       absl::StrCat("is ", per_host, ", which does not divide resources.ranks (", ranks, ")"));
  }
  if (command.min_ranks() > ranks) {
    problems->AddError(positions, "command.min_ranks",
                       absl::StrCat("is ", command.min_ranks(), ", more than resources.ranks (", ranks,
                                    "), which is the largest number of ranks"));
  } else if (per_host > 0 && command.min_ranks() % per_host != 0) {
    problems->AddError(
        positions, "command.min_ranks",
        absl::StrCat("is ", command.min_ranks(), ", not a multiple of command.ranks_per_host (", per_host, ")"));
  }
}

}  // namespace

void CheckCommandKeys(const v1::JobSpec& spec, const Positions& positions, Problems* problems) {
  const v1::Command& command = spec.command();
  if (command.argv_size() > 0 && command.argv(0).empty()) {
    problems->AddError(positions, "command.argv", "expected a program as the first element, found an empty string");
  }
  if (!command.has_workdir() && positions.count("command.workdir") == 0) {
    problems->AddError(positions, "command.workdir",
                       "is required; expected the absolute path of the folder in which the program runs");
  }
  CheckVariables(command, positions, problems);
  CheckRanks(spec, positions, problems);
  if (command.check().argv_size() > 0 && command.check().argv(0).empty()) {
    problems->AddError(positions, "command.check.argv",
                       "expected a program as the first element, found an empty string");
  }
}

}  // namespace trainyard
