// Heads of requests: what is understood, and what is refused because two readers could understand it differently.
#include "common/http_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

TEST(HttpMessage, Head_IsParsed) {
  const auto head = ParseHttpHead(
      "POST /api/v1/JobService/Get?a=1&b=x-y HTTP/1.1\r\nHost: localhost:7071\r\nX-Two:  words here \r\n"
      "Content-Length: 12\r\n\r\n");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->method, "POST");
  EXPECT_EQ(head->path, "/api/v1/JobService/Get");
  EXPECT_EQ(head->parameters.at("b"), "x-y");
  EXPECT_EQ(head->header("x-two"), "words here");
  EXPECT_EQ(head->content_length, 12u);
  EXPECT_FALSE(head->is_http10);
  EXPECT_TRUE(ParseHttpHead("GET / HTTP/1.0\n\n")->is_http10);
  EXPECT_EQ(ParseHttpHead("POST / HTTP/1.1\r\n\r\n")->content_length, 0u) << "a request without a length has no body";
}

TEST(HttpMessage, AmbiguousHead_IsRefused) {
  for (const char* lines :
       {"Host: a\r\nHost: b", "Authorization: a\r\nauthorization: b", "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: -1", "Content-Length: +1", "Content-Length: 1x",
        "Content-Length: ", "Content-Length: 99999999999999999999", " folded: line", "Space : before colon", "no colon",
        ": no name", "Nul: a\x01", "Origin: a\r\nOrigin: b"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHttpHead(absl::StrCat("GET / HTTP/1.1\r\n", lines, "\r\n\r\n")).status()))
        << lines;
  }
  for (const char* line : {"", "GET", "GET /", "GET / HTTP/2.0", "GET  / HTTP/1.1", "get / HTTP/1.1",
                           "GET http://localhost/ HTTP/1.1", "GET / HTTP/1.1 x", "\x7fGET / HTTP/1.1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHttpHead(absl::StrCat(line, "\r\n\r\n")).status())) << line;
  }
  const absl::Status chunked =
      ParseHttpHead("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n").status();
  EXPECT_TRUE(absl::IsUnimplemented(chunked)) << chunked;
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) absl::StrAppend(&many, "H", i, ": x\r\n");
  EXPECT_THAT(std::string(ParseHttpHead(many + "\r\n").status().message()), HasSubstr("more than 100 headers"));
}

TEST(HttpMessage, Response_HasItsLengthAndEnds) {
  const std::string text = SerializeHttpResponse(HttpText(404, "nothing\n", "X-A: b\r\n"), "X-C: d\r\n", true);
  EXPECT_EQ(text,
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 8\r\n"
            "Connection: close\r\nX-C: d\r\nX-A: b\r\n\r\nnothing\n");
  EXPECT_THAT(SerializeHttpHead({.code = 200, .type = "text/event-stream"}, "", true),
              HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_EQ(SerializeHttpChunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
  EXPECT_EQ(SerializeHttpChunk(""), "0\r\n\r\n");
}

}  // namespace
}  // namespace trainyard
