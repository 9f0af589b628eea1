#include "coordinator/rpc/reason_interceptor.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/escape.h"
#include "common/rpc_answer.h"
#include "common/version.h"
#include "trainyard/v1/agent.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

constexpr char kStandardServices[] = "/grpc.";
constexpr size_t kPathBytes = 128;

// The method of a path among those of the service; null: the service has no such method.
const google::protobuf::MethodDescriptor* FindIn(const google::protobuf::ServiceDescriptor& service,
                                                 absl::string_view path) {
  const bool is_of_service = absl::ConsumePrefix(&path, "/") && absl::ConsumePrefix(&path, service.full_name()) &&
                             absl::ConsumePrefix(&path, "/");
  return is_of_service ? service.FindMethodByName(std::string(path)) : nullptr;
}

const google::protobuf::MethodDescriptor* FindMethod(absl::string_view path, bool* is_of_daemons) {
  const auto* agents = v1::AgentMessage::descriptor()->file()->FindServiceByName("AgentService");
  const auto* jobs = v1::Job::descriptor()->file()->FindServiceByName("JobService");
  const auto* found = FindIn(*agents, path);
  *is_of_daemons = found != nullptr;
  return found != nullptr ? found : FindIn(*jobs, path);
}

class ReasonInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit ReasonInterceptor(std::string path) : path_(std::move(path)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (!status.ok() && status.error_details().empty()) methods->ModifySendStatus(WithReason(path_, status));
    }
    methods->Proceed();
  }

 private:
  const std::string path_;
};

}  // namespace

grpc::Status WithReason(absl::string_view path, const grpc::Status& status) {
  if (status.ok() || !status.error_details().empty()) return status;
  bool is_of_daemons = false;
  const auto* method = FindMethod(path, &is_of_daemons);
  if (status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return ToGrpcAnswer(FromGrpcStatus(status));
  if (method == nullptr) {
    return ToGrpcAnswer(
        AddReason(absl::UnimplementedError(absl::StrCat("trainyard-coordinator ", kVersion, " has no method ",
                                                        EscapeText(path.substr(0, kPathBytes)))),
                  reasons::kMethodUnknown));
  }
  return ToGrpcAnswer(
      absl::InvalidArgumentError(absl::StrCat("the request cannot be parsed as ", method->input_type()->full_name())));
}

grpc::experimental::Interceptor* ReasonInterceptors::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  const absl::string_view path = info->method() == nullptr ? "" : info->method();
  bool is_of_daemons = false;
  if (absl::StartsWith(path, kStandardServices)) return nullptr;
  FindMethod(path, &is_of_daemons);
  return is_of_daemons ? nullptr : new ReasonInterceptor(std::string(path));
}

}  // namespace trainyard
