#include "coordinator/rpc/access.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/escape.h"
#include "common/status_macros.h"
#include "common/tokens.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kBridge[] = "trainyard-bridge";
constexpr char kBridgeRole[] = "trainyard-bridge-role";
constexpr char kBridgeBy[] = "trainyard-bridge-by-bin";
constexpr char kViewerRole[] = "viewer";
constexpr size_t kProgramBytes = 64;

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

absl::optional<absl::string_view> Find(const Metadata& metadata, const char* name) {
  const auto entry = metadata.find(name);
  if (entry == metadata.end()) return absl::nullopt;
  return absl::string_view(entry->second.data(), entry->second.size());
}

// The program of a caller, as it states itself: "trainctl/0.1.0", "grpc-python/1.60".
std::string ProgramOf(const Metadata& metadata) {
  absl::optional<absl::string_view> program = Find(metadata, "trainyard-client");
  if (!program.has_value()) program = Find(metadata, "user-agent");
  if (!program.has_value()) return "an unknown program";
  return ProgramText(*program);
}

std::string AddressOf(const grpc::CallbackServerContext& context) {
  const std::string peer = context.peer();
  absl::string_view address = peer;
  if (!absl::ConsumePrefix(&address, "ipv4:")) absl::ConsumePrefix(&address, "ipv6:");
  return EscapeText(address);
}

absl::Status CheckRole(Role role, Need need) {
  if (need == Need::kRead || role == Role::kOperator) return absl::OkStatus();
  return AddReason(
      absl::PermissionDeniedError("the call has the token of viewers, who may only read; it needs the token of "
                                  "operators"),
      reasons::kOperatorRequired);
}

void ReduceSpec(v1::JobSpec& spec) {
  v1::JobSpec reduced;
  reduced.set_name(spec.name());
  reduced.mutable_resources()->set_ranks(spec.resources().ranks());
  spec = std::move(reduced);
}

}  // namespace

std::string ProgramText(absl::string_view header) {
  return EscapeText(header.substr(0, std::min(header.find(' '), kProgramBytes)));
}

absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return authorization.substr(kScheme.size());
}

const google::protobuf::ServiceDescriptor& JobServiceDescriptor() {
  return *v1::Job::descriptor()->file()->FindServiceByName("JobService");
}

Need NeedOfJobMethod(absl::string_view method) {
  static const auto* readers = [] {
    auto* names = new absl::flat_hash_set<std::string>;
    const auto& service = JobServiceDescriptor();
    for (int i = 0; i < service.method_count(); ++i) {
      const auto& found = *service.method(i);
      if (found.options().idempotency_level() == google::protobuf::MethodOptions::NO_SIDE_EFFECTS) {
        names->insert(found.name());
      }
    }
    return names;
  }();
  return readers->contains(method) ? Need::kRead : Need::kOperate;
}

absl::StatusOr<Caller> Access::Check(const grpc::CallbackServerContext& context, Need need) const {
  const Metadata& metadata = context.client_metadata();
  const auto bridge = Find(metadata, kBridge);
  if (bridge.has_value() && !bridge_secret_.empty() && SameToken(*bridge, bridge_secret_)) {
    Caller caller{Find(metadata, kBridgeRole) == kViewerRole ? Role::kViewer : Role::kOperator,
                  std::string(Find(metadata, kBridgeBy).value_or(""))};
    RETURN_IF_ERROR(CheckRole(caller.role, need));
    return caller;
  }
  ASSIGN_OR_RETURN(const Role role, RoleOf(Find(metadata, "authorization")));
  RETURN_IF_ERROR(CheckRole(role, need));
  if (need != Need::kOperate) return Caller{role, ""};
  return Caller{role, absl::StrCat(is_open() ? "a caller" : "the operator", " at ", AddressOf(context), " with ",
                                   ProgramOf(metadata))};
}

absl::StatusOr<Role> Access::RoleOf(absl::optional<absl::string_view> authorization) const {
  if (token_.empty()) return Role::kOperator;
  if (!authorization.has_value()) {
    return AddReason(absl::UnauthenticatedError(absl::StrCat("the call has no token: ", instructions_)),
                     reasons::kTokenMissing);
  }
  const absl::string_view presented = BearerToken(*authorization);
  if (SameToken(presented, token_)) return Role::kOperator;
  if (!viewer_token_.empty() && SameToken(presented, viewer_token_)) return Role::kViewer;
  return AddReason(absl::UnauthenticatedError(absl::StrCat("the call has the wrong token: ", instructions_)),
                   reasons::kTokenWrong);
}

void Access::Vouch(const Caller& caller, grpc::ClientContext& context) const {
  context.AddMetadata(kBridge, bridge_secret_);
  if (caller.role == Role::kViewer) context.AddMetadata(kBridgeRole, kViewerRole);
  context.AddMetadata(kBridgeBy, caller.by);
}

void HideSpecs(Message& message) {
  if (auto* spec = dynamic_cast<v1::JobSpec*>(&message); spec != nullptr) return ReduceSpec(*spec);
  if (auto* job = dynamic_cast<v1::Job*>(&message); job != nullptr) job->clear_decisions();
  if (auto* submitted = dynamic_cast<v1::SubmitResponse*>(&message); submitted != nullptr) submitted->clear_decisions();
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      HideSpecs(*reflection.MutableMessage(&message, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      HideSpecs(*reflection.MutableRepeatedMessage(&message, field, i));
    }
  }
}

}  // namespace trainyard
