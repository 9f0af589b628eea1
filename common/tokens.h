// Tokens: what shows a coordinator that a call comes from whom it answers (docs/decisions/0007, "Who may call").
//
// A coordinator on loopback draws one at each start and writes it where programs of the same user look for it:
// <user's state folder>/trainyard/tokens/<host name>-<network namespace>-<address>-<port>. The first two parts keep
// apart what shares a home: hosts of a cluster, and containers. The folder has mode 0700, the file 0600.
//
//   std::string token = DrawToken();
//   ASSIGN_OR_RETURN(std::string folder, UserTokenFolder());
//   RETURN_IF_ERROR(WriteToken(folder, "127.0.0.1:7070", token));
//   ... ReadOwnToken(folder, "127.0.0.1:7070") ...        // the other side
//   RemoveToken(folder, "127.0.0.1:7070", token);
//
// Functions keep no state. No message holds a token.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

std::string DrawToken();

// Whether both are the same, in a time that does not depend on where they differ.
bool SameToken(absl::string_view one, absl::string_view other);

// Of the user that this program runs as. Possible errors: as UserStateFolder.
absl::StatusOr<std::string> UserTokenFolder();

// `address` is numeric: "127.0.0.1:7070", "[::1]:7070".
std::string TokenPath(const std::string& folder, absl::string_view address);

// Makes the folder, and replaces the file at once. Possible errors: PermissionDenied, FailedPrecondition: the folder
// cannot be made, or belongs to another user. ResourceExhausted: the disk is full.
absl::Status WriteToken(const std::string& folder, absl::string_view address, absl::string_view token);

// Replaces the file `path`, mode 0600, for readers that know its path. Possible errors: as of any file.
absl::Status WriteTokenFile(const std::string& path, absl::string_view token);

// The token of a coordinator of this user, or of root; "" where none was written. Possible errors: PermissionDenied:
// the file is not that user's alone. InvalidArgument: it holds no token.
absl::StatusOr<std::string> ReadOwnToken(const std::string& folder, absl::string_view address);

// Unless another coordinator has put its own there.
void RemoveToken(const std::string& folder, absl::string_view address, absl::string_view token);

struct NamedToken {
  std::string token;
  uid_t owner = 0;  // of the file
};

// From a file that the user named (token_file). Possible errors: NotFound. PermissionDenied: it cannot be read, or
// every user of this host can. InvalidArgument: it holds no token: 16 to 1024 letters, digits and -._~+/= .
absl::StatusOr<NamedToken> ReadNamedToken(const std::string& path);

// As ReadNamedToken; where the file is missing, a token is drawn and written there with mode 0600.
absl::StatusOr<NamedToken> ReadOrMakeNamedToken(const std::string& path);

}  // namespace trainyard
