// Tokens, which authenticate the callers of a coordinator (docs/decisions/0007, "Access").
//
// A coordinator on loopback generates a token at each start and writes it where programs of the same user read it:
// <user's state folder>/trainyard/tokens/<host name>-<network namespace>-<address>-<port>. The first two parts separate
// hosts of a cluster, and containers, that share a home folder. The folder has mode 0700, the file 0600.
//
//   std::string token = GenerateToken();
//   ASSIGN_OR_RETURN(std::string folder, UserTokenFolder());
//   RETURN_IF_ERROR(WriteToken(folder, "127.0.0.1:7070", token));
//   ... ReadOwnToken(folder, "127.0.0.1:7070") ...        // in a client
//   RemoveToken(folder, "127.0.0.1:7070", token);
//
// Functions keep no state. No error message contains a token.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

std::string GenerateToken();

// Whether the tokens are equal, in a time that does not depend on where they differ.
bool SameToken(absl::string_view one, absl::string_view other);

// The token folder of the user that runs this program. Possible errors: those of UserStateFolder.
absl::StatusOr<std::string> UserTokenFolder();

// `address` is numeric: "127.0.0.1:7070", "[::1]:7070".
std::string TokenPath(const std::string& folder, absl::string_view address);

// Makes the folder and replaces the file atomically. Possible errors: PermissionDenied, FailedPrecondition: the folder
// cannot be made, or belongs to another user. ResourceExhausted: the disk is full.
absl::Status WriteToken(const std::string& folder, absl::string_view address, absl::string_view token);

// Deletes the file `path` and writes it anew with mode 0600, for readers that know its path. Possible errors: those of
// open and write.
absl::Status WriteTokenFile(const std::string& path, absl::string_view token);

// The token of a coordinator of this user, or of root; "" if none was written. Possible errors: PermissionDenied: the
// file belongs to another user, or other users have access to it. InvalidArgument: it does not contain a token.
absl::StatusOr<std::string> ReadOwnToken(const std::string& folder, absl::string_view address);

// Does nothing if another coordinator has written its own token there.
void RemoveToken(const std::string& folder, absl::string_view address, absl::string_view token);

struct NamedToken {
  std::string token;
  uid_t owner = 0;  // of the file
};

// Reads a file that the user named (token_file). Possible errors: NotFound. PermissionDenied: it cannot be read, or all
// users of this host have access to it. InvalidArgument: it does not contain a token, which consists of 16 to 1024
// letters, digits and -._~+/= .
absl::StatusOr<NamedToken> ReadNamedToken(const std::string& path);

// As ReadNamedToken. If the file is missing, generates a token and writes it there atomically, mode 0600.
absl::StatusOr<NamedToken> ReadOrMakeNamedToken(const std::string& path);

}  // namespace trainyard
