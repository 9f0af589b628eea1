// Prints the texts of `trainctl sample` in the order of their prompts, although they are generated together: the first
// text that has not ended is printed as it grows, the others wait. Used by one thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/trainer/generate.h"
#include "worker/trainer/prompts.h"
#include "worker/trainer/text_model.h"
#include "worker/trainer/text_stream.h"

namespace trainyard {

struct SampleStyle {
  bool json = false;         // a JSON object for each text, when it has ended
  bool stream = false;       // text is written as it grows; false: when it has ended
  bool headings = false;     // each text follows a line that names its prompt
  bool is_terminal = false;  // control characters are escaped
};

// Possible errors of its functions: Aborted: standard output cannot be written.
class SampleOutput final : public TextReceiver {
 public:
  // All arguments but the style must outlive the output. `tokens` are those of the prompts.
  SampleOutput(const TextModel& model, const std::vector<Prompt>& prompts,
               const std::vector<std::vector<int64_t>>& tokens, const SampleStyle& style);

  absl::Status Add(size_t prompt, int64_t token) override;
  absl::Status End(size_t prompt, TextEnd end) override;

 private:
  struct Text {
    explicit Text(const Tokenizer& tokenizer) : stream(tokenizer) {}
    TextStream stream;
    std::vector<int64_t> generated;
    std::string waiting;  // not written yet
    bool has_begun = false;
    bool has_heading = false;  // the heading was written
    bool has_ended = false;
  };
  absl::Status Write(size_t prompt);
  std::string Heading(size_t prompt) const;
  std::string Json(size_t prompt, TextEnd end) const;

  const TextModel& model_;
  const std::vector<Prompt>& prompts_;
  const std::vector<std::vector<int64_t>>& tokens_;
  const SampleStyle style_;
  const absl::Time began_ = absl::Now();
  std::vector<Text> texts_;
  size_t current_ = 0;  // the first text that has not ended
};

}  // namespace trainyard
