#include "coordinator/rpc/access.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/tokens.h"

namespace trainyard {

absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return authorization.substr(kScheme.size());
}

absl::Status Access::Check(const grpc::CallbackServerContext& context) const {
  const auto& metadata = context.client_metadata();
  const auto entry = metadata.find("authorization");
  if (entry == metadata.end()) return CheckHeader(absl::nullopt);
  return CheckHeader(absl::string_view(entry->second.data(), entry->second.size()));
}

absl::Status Access::CheckHeader(absl::optional<absl::string_view> authorization) const {
  if (token_.empty()) return absl::OkStatus();
  if (!authorization.has_value()) {
    return AddReason(absl::UnauthenticatedError(absl::StrCat("the call has no token: ", instructions_)),
                     reasons::kTokenMissing);
  }
  const absl::string_view presented = BearerToken(*authorization);
  if (SameToken(presented, token_)) return absl::OkStatus();
  return AddReason(absl::UnauthenticatedError(absl::StrCat("the call has the wrong token: ", instructions_)),
                   reasons::kTokenWrong);
}

}  // namespace trainyard
