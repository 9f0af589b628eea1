// Tokenizes conversations for tests/interop/chat_test.py. The argument is the folder of a tokenizer; each line of
// standard input is a record with "messages", and each line of the output is
//
//   {"ids": [...], "mask": [0, 1, ...]} or {"error": "..."}
#include <iostream>
#include <nlohmann/json.hpp>

#include "worker/data/chat_records.h"

namespace trainyard {
namespace {

using Json = nlohmann::ordered_json;

int Run(const std::string& folder) {
  const absl::StatusOr<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Open(folder);
  const absl::StatusOr<std::unique_ptr<TextEncoder>> encoder = OpenTextEncoder(folder);
  if (!chat.ok() || !encoder.ok()) {
    std::cerr << chat.status().message() << encoder.status().message() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<ChatTokens> made =
        TokenizeChat(Json::parse(line, nullptr, /*allow_exceptions=*/false), "messages", **chat, **encoder);
    Json answer;
    if (made.ok()) {
      answer = {{"ids", made->tokens}, {"mask", std::vector<int>(made->is_reply.begin(), made->is_reply.end())}};
    } else {
      answer = {{"error", std::string(made.status().message())}};
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) { return argc == 2 ? trainyard::Run(argv[1]) : 2; }
