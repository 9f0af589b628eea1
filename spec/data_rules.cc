#include "spec/data_rules.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard {
namespace {

constexpr char kTextKey[] = "train.data.text";
constexpr char kJsonlKey[] = "train.data.jsonl";
constexpr char kFieldsKey[] = "train.data.fields";
constexpr char kLossKey[] = "train.data.loss";
constexpr char kTokenizerPathKey[] = "train.data.tokenizer_path";

// Exactly one of the three forms of a record, completely.
std::string ProblemOfFields(const v1::DataFields& fields) {
  const bool pair = fields.has_prompt() || fields.has_response(), ids = fields.has_input_ids() || fields.has_labels();
  if (fields.has_text() + pair + ids > 1) {
    return "names fields of several forms; choose text, or prompt and response, or input_ids and labels";
  }
  if (pair && !fields.has_prompt()) return "names a response without a prompt; name both";
  if (pair && !fields.has_response()) return "names a prompt without a response; name both";
  if (ids && !fields.has_input_ids()) return "names labels without input_ids; name both";
  return "";
}

}  // namespace

std::string TokenizerPathOf(const v1::Train& train) {
  const v1::Data& data = train.data();
  if (data.has_tokenizer_path() || data.fields().has_input_ids()) return data.tokenizer_path();
  // A model of a folder understands the tokens of that folder only; bytes must be asked for.
  return data.has_tokenizer() ? "" : train.model().path();
}

void CheckDataSource(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Data& data = train.data();
  const bool has_text = data.text_size() > 0, has_jsonl = data.jsonl_size() > 0;
  // An invalid list has been reported already.
  const bool is_rejected = positions.count(kTextKey) + positions.count(kJsonlKey) > 0;
  if (train.has_data() && !has_text && !has_jsonl && !is_rejected) {
    problems->AddError(positions, "train.data",
                       "has neither text nor jsonl; expected one of them, a list of files, folders or globs");
  }
  if (has_text && has_jsonl) {
    problems->AddError(positions, kJsonlKey, "is given together with text; a job has one or the other");
  }
  const bool has_fields = data.fields().ByteSizeLong() > 0;
  if (!has_jsonl && has_fields) problems->AddWarning(positions, kFieldsKey, "has no effect: there is no jsonl");
  if (std::string problem = ProblemOfFields(data.fields()); has_jsonl && !problem.empty()) {
    problems->AddError(positions, kFieldsKey, problem);
  }
  const bool names_no_prompt = has_fields && !data.fields().has_prompt();
  if (data.loss() == v1::DATA_LOSS_ALL && (!has_jsonl || names_no_prompt)) {
    problems->AddWarning(positions, kLossKey, "has no effect: it applies to jsonl with the fields prompt and response");
  }
  if (!data.has_tokenizer_path()) return;
  if (data.fields().has_input_ids()) {
    problems->AddWarning(positions, kTokenizerPathKey, "has no effect: train.data.fields.input_ids are tokens");
  } else if (!train.model().has_vocabulary() && positions.count("train.model.vocabulary") == 0) {
    problems->AddError(positions, "train.model.vocabulary",
                       "is required with train.data.tokenizer_path; expected at least the number of its tokens");
  }
}

}  // namespace trainyard
