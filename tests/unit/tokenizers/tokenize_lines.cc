// Encodes and decodes text for tests and benchmarks:
//
//   tokenize_lines TOKENIZER              a JSON text in each line of standard input -> {"ids", "special", "decoded",
//                                         "shown"} or {"error"}; `special` are the ids with the template's tokens,
//                                         `shown` is `special` decoded without special tokens
//   tokenize_lines TOKENIZER --cut BYTES  {"ids", "parts"} or {"error"}: the ids of parts of at least BYTES that end at
//                                         safe cuts, and the number of parts
//   tokenize_lines TOKENIZER --time N     only {"seconds": [...], "tokens"} at the end, or {"error"}: the times of N
//                                         passes over all lines, and the number of tokens in one pass
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "tokenizers/open_tokenizer.h"

namespace trainyard {
namespace {

using Json = nlohmann::json;

Json Report(const absl::Status& status) { return {{"error", std::string(status.message())}}; }

Json Encoded(const Tokenizer& tokenizer, const std::string& text) {
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  if (!ids.ok()) return Report(ids.status());
  const absl::StatusOr<std::vector<int32_t>> special = tokenizer.Encode(text, {.special_tokens = true});
  if (!special.ok()) return Report(special.status());
  return {{"ids", *ids},
          {"special", *special},
          {"decoded", tokenizer.Decode(*ids)},
          {"shown", tokenizer.Decode(*special, /*skip_special=*/true)}};
}

Json EncodedInParts(const Tokenizer& tokenizer, const std::string& text, size_t size) {
  std::vector<int32_t> ids;
  size_t parts = 0;
  for (size_t begin = 0; begin < text.size(); ++parts) {
    const size_t end = tokenizer.NextSafeCut(text, std::min(begin + size, text.size()));
    const absl::string_view part = absl::string_view(text).substr(begin, end - begin);
    const absl::Status status = tokenizer.Append(part, {.continues = begin > 0}, ids);
    if (!status.ok()) return Report(status);
    begin = end;
  }
  return {{"ids", ids}, {"parts", parts}};
}

Json Timed(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int passes) {
  std::vector<double> seconds;
  std::vector<int32_t> ids;
  for (int pass = 0; pass < passes; ++pass) {
    ids.clear();
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& text : texts) {
      if (const absl::Status status = tokenizer.Append(text, {}, ids); !status.ok()) return Report(status);
    }
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return {{"seconds", seconds}, {"tokens", ids.size()}};
}

int Run(const std::string& path, const std::string& mode, int number) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = OpenTokenizer(path);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status().message() << "\n";
    return 1;
  }
  std::vector<std::string> texts;
  for (std::string line; std::getline(std::cin, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_string()) return 2;
    const auto text = json.get<std::string>();
    if (mode == "--time") {
      texts.push_back(text);
    } else {
      std::cout << (mode == "--cut" ? EncodedInParts(**tokenizer, text, static_cast<size_t>(number))
                                    : Encoded(**tokenizer, text))
                       .dump()
                << "\n";
    }
  }
  if (mode == "--time") std::cout << Timed(**tokenizer, texts, number).dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  int number = 0;
  const std::string mode = argc > 2 ? argv[2] : "";
  if (argc < 2 || (argc > 2 && (argc != 4 || !absl::SimpleAtoi(argv[3], &number)))) {
    std::cerr << "usage: tokenize_lines TOKENIZER [--cut BYTES | --time PASSES]\n";
    return 2;
  }
  return trainyard::Run(argv[1], mode, number);
}
