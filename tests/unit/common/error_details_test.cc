// The details of errors fit into the headers of any client, whatever the error says; the texts of versions, and which
// versions work together.
#include "common/error_details.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/api_version.h"
#include "common/rpc_answer.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

// As gRPC sends a status: the message percent-encoded, the details as base64.
size_t HeaderBytes(const grpc::Status& status) {
  size_t bytes = status.error_details().size() / 3 * 4 + 4;
  for (char c : status.error_message()) bytes += c >= 0x20 && c < 0x7F && c != '%' ? 1 : 3;
  return bytes;
}

TEST(ErrorDetails, ReasonMetadataAndResource_AreReadBackFromTheGrpcStatus) {
  absl::Status status = AddReason(absl::NotFoundError("no job x"), reasons::kJobNotFound);
  status = AddReason(std::move(status), "ANOTHER_REASON");
  status = AddMetadata(std::move(status), "job_id", "x");
  status = AddRetry(AddResource(std::move(status), "job", "x"), absl::Milliseconds(1500));

  absl::Status received = absl::NotFoundError("");
  CopyDetails(ToGrpcAnswer(status), &received);

  EXPECT_EQ(ReasonOf(received), "JOB_NOT_FOUND") << "the first reason stays";
  EXPECT_EQ(ErrorInfoOf(received)->domain(), "trainyard");
  EXPECT_EQ(ErrorInfoOf(received)->metadata().at("job_id"), "x");
  EXPECT_EQ(ResourceInfoOf(received)->resource_type(), "job");
  EXPECT_EQ(RetryDelayOf(received), absl::Milliseconds(1500));
}

TEST(ErrorDetails, AnswerWithoutAReason_GetsThatOfItsCode) {
  EXPECT_EQ(ReasonOf(CompleteDetails(absl::FailedPreconditionError("it is PAUSED"))), reasons::kWrongState);
  EXPECT_EQ(ReasonOf(CompleteDetails(absl::DeadlineExceededError("late"))), reasons::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(CompleteDetails(absl::InternalError("a bug"))), reasons::kInternalError);
  for (int code = 1; code <= 16; ++code) {
    const absl::Status completed = CompleteDetails(absl::Status(static_cast<absl::StatusCode>(code), "x"));
    EXPECT_NE(ReasonOf(completed), "") << completed;
    EXPECT_EQ(ErrorInfoOf(completed)->domain(), kErrorDomain);
  }
  EXPECT_TRUE(CompleteDetails(absl::OkStatus()).ok());
}

TEST(ErrorDetails, LargestError_FitsIntoTheHeadersOfAnyClient) {
  for (const std::string& filler :
       {std::string("x"), std::string("%"), std::string("\xe2\x82\xac"), std::string("\n")}) {
    std::string text;
    while (text.size() < 20'000) text += filler;
    absl::Status status = InvalidFieldError("page_token", text);
    for (int i = 0; i < 100; ++i) status = AddMetadata(std::move(status), absl::StrCat("key", i), text);
    status =
        AddRetry(AddResource(AddReason(std::move(status), reasons::kInvalidRequest), "job", text), absl::Seconds(1));

    const grpc::Status sent = ToGrpcAnswer(status);

    EXPECT_LT(HeaderBytes(sent), 8'000u) << filler;
    EXPECT_THAT(sent.error_message(), HasSubstr("more bytes"));
    google::rpc::Status details;
    ASSERT_TRUE(details.ParseFromString(sent.error_details()));
    EXPECT_EQ(details.message(), sent.error_message());
  }
}

TEST(ErrorDetails, UnavailableWithARetry_IsNotAnAnswer) {
  const absl::Status busy = absl::UnavailableError("busy");
  EXPECT_TRUE(IsAnswered(ToGrpcAnswer(AddReason(busy, reasons::kHostNotConnected))));
  EXPECT_FALSE(IsAnswered(ToGrpcAnswer(AddRetry(busy, absl::Seconds(1)))));
  EXPECT_FALSE(IsAnswered(grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused")));
}

TEST(ApiVersion, Text_IsReadBack_AndOtherTextsAreRefused) {
  const ProgramVersion version{.program = "trainctl", .version = "1.2.3~rc1", .oldest_api = 2, .api = 4};
  EXPECT_EQ(FormatVersion(version), "trainctl/1.2.3~rc1 api=2-4");
  const auto read = ParseVersion(FormatVersion(version));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(FormatVersion(*read), FormatVersion(version));
  for (const char* text : {"", "trainctl", "trainctl/1", "trainctl/1 api=", "trainctl/1 api=2-1", "trainctl/1 api=-1",
                           "trainctl/1 api=1-x", "a/b/c api=1-1", "a\x1b/1 api=1-1", "/1 api=1-1", "a/1 api=1-1 x"}) {
    EXPECT_FALSE(ParseVersion(text).has_value()) << text;
  }
}

TEST(ApiVersion, PairWithoutACommonApi_IsRefused_NamingBothAndWhatToUpgrade) {
  const ProgramVersion ours{.program = "trainyard-coordinator", .version = "0.3.0", .oldest_api = 2, .api = 3};
  const ProgramVersion older{.program = "trainctl", .version = "0.1.0", .oldest_api = 1, .api = 1};
  const ProgramVersion newer{.program = "trainctl", .version = "0.9.0", .oldest_api = 4, .api = 5};
  const ProgramVersion other{.program = "trainctl", .version = "0.2.0", .oldest_api = 1, .api = 2};

  const absl::Status too_old = CheckCompatible(older, ours);
  EXPECT_EQ(ReasonOf(too_old), reasons::kIncompatibleVersion);
  EXPECT_EQ(std::string(too_old.message()),
            "trainctl 0.1.0 supports version 1 of the API, and trainyard-coordinator 0.3.0 supports versions 2 to 3: "
            "upgrade trainctl to version 0.3.0");
  EXPECT_THAT(std::string(CheckCompatible(newer, ours).message()),
              HasSubstr("upgrade trainyard-coordinator to version 0.9.0"));
  EXPECT_TRUE(CheckCompatible(other, ours).ok());
  EXPECT_THAT(DescribeDifference(other, ours), HasSubstr("trainctl 0.2.0 and trainyard-coordinator 0.3.0"));
  EXPECT_EQ(DescribeDifference({.program = "trainctl", .version = "0.3.7"}, ours), "");
}

}  // namespace
}  // namespace trainyard
