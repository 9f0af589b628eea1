#include "common/api_version.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/error_details.h"

namespace trainyard {
namespace {

constexpr size_t kTextBytesMax = 128;

bool IsName(absl::string_view text) {
  for (char c : text) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '.' && c != '_' && c != '+' && c != '~') return false;
  }
  return !text.empty();
}

bool ReadNumber(absl::string_view text, uint32_t* number) {
  return !text.empty() && absl::ascii_isdigit(text.front()) && absl::SimpleAtoi(text, number);
}

std::string Name(const ProgramVersion& version) { return absl::StrCat(version.program, " ", version.version); }

std::string Range(const ProgramVersion& version) {
  return version.oldest_api == version.api ? absl::StrCat("version ", version.api)
                                           : absl::StrCat("versions ", version.oldest_api, " to ", version.api);
}

// Returns the first two parts of a version: "0.1" for "0.1.7".
std::string ReleaseOf(absl::string_view version) {
  const std::vector<absl::string_view> parts = absl::StrSplit(version, '.');
  return parts.size() < 2 ? std::string(version) : absl::StrCat(parts[0], ".", parts[1]);
}

}  // namespace

std::string FormatVersion(const ProgramVersion& version) {
  return absl::StrCat(version.program, "/", version.version, " api=", version.oldest_api, "-", version.api);
}

absl::optional<ProgramVersion> ParseVersion(absl::string_view text) {
  if (text.size() > kTextBytesMax) return absl::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  if (words.size() != 2) return absl::nullopt;
  const std::vector<absl::string_view> name = absl::StrSplit(words[0], '/');
  absl::string_view range = words[1];
  if (name.size() != 2 || !IsName(name[0]) || !IsName(name[1]) || !absl::ConsumePrefix(&range, "api="))
    return absl::nullopt;
  const std::vector<absl::string_view> ends = absl::StrSplit(range, '-');
  ProgramVersion version{.program = std::string(name[0]), .version = std::string(name[1])};
  if (ends.size() != 2 || !ReadNumber(ends[0], &version.oldest_api) || !ReadNumber(ends[1], &version.api) ||
      version.oldest_api > version.api) {
    return absl::nullopt;
  }
  return version;
}

bool IsSameRelease(absl::string_view a, absl::string_view b) { return ReleaseOf(a) == ReleaseOf(b); }

absl::Status CheckCompatible(const ProgramVersion& client, const ProgramVersion& server) {
  if (client.oldest_api <= server.api && server.oldest_api <= client.api) return absl::OkStatus();
  const ProgramVersion& older = client.api < server.oldest_api ? client : server;
  const ProgramVersion& newer = client.api < server.oldest_api ? server : client;
  return AddReason(absl::FailedPreconditionError(absl::StrCat(
                       Name(client), " supports ", Range(client), " of the API, and ", Name(server), " supports ",
                       Range(server), ": upgrade ", older.program, " to version ", newer.version)),
                   reasons::kIncompatibleVersion);
}

std::string DescribeDifference(const ProgramVersion& client, const ProgramVersion& server) {
  if (IsSameRelease(client.version, server.version)) return "";
  return absl::StrCat(Name(client), " and ", Name(server),
                      " are of different versions, which works; use the same version to have everything that the "
                      "newer one supports");
}

}  // namespace trainyard
