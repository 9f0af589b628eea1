#include "spec/data_rules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "templates/parser.h"

namespace trainyard {
namespace {

constexpr char kTextKey[] = "train.data.text";
constexpr char kJsonlKey[] = "train.data.jsonl";
constexpr char kTokensKey[] = "train.data.tokens";
constexpr char kCsvKey[] = "train.data.csv";
constexpr char kWeightsKey[] = "train.data.weights";
constexpr char kHeldOutKey[] = "train.data.held_out";
constexpr char kFieldsKey[] = "train.data.fields";
constexpr char kMessagesKey[] = "train.data.fields.messages";
constexpr char kChatTemplateKey[] = "train.data.chat_template";
constexpr char kLossKey[] = "train.data.loss";
constexpr char kTokenizerPathKey[] = "train.data.tokenizer_path";

// Returns a problem if a field has an empty name, if the fields belong to several of the four forms of a record, or if
// a form lacks a required field.
std::string ProblemOfFields(const v1::DataFields& fields) {
  const bool pair = fields.has_prompt() || fields.has_response(), ids = fields.has_input_ids() || fields.has_labels();
  for (const auto& [name, value] :
       {std::pair("text", &fields.text()), std::pair("prompt", &fields.prompt()),
        std::pair("response", &fields.response()), std::pair("input_ids", &fields.input_ids()),
        std::pair("labels", &fields.labels()), std::pair("messages", &fields.messages())}) {
    const auto* field = v1::DataFields::descriptor()->FindFieldByName(name);
    if (value->empty() && fields.GetReflection()->HasField(fields, field)) {
      return absl::StrCat("has an empty name for ", name, "; expected the name of a field, or remove the key");
    }
  }
  if (fields.has_text() + pair + ids + fields.has_messages() > 1) {
    return "names fields of several forms; choose text, or prompt and response, or input_ids and labels, "
           "or messages";
  }
  if (pair && !fields.has_prompt()) return "names a response without a prompt; name both";
  if (pair && !fields.has_response()) return "names a prompt without a response; name both";
  if (ids && !fields.has_input_ids()) return "names labels without input_ids; name both";
  return "";
}

void CheckWeights(const v1::Data& data, const Positions& positions, Problems* problems) {
  if (data.weights_size() == 0) return;
  const std::pair<absl::string_view, int> lists[] = {{"text", data.text_size()},
                                                     {"jsonl", data.jsonl_size()},
                                                     {"tokens", data.tokens_size()},
                                                     {"csv", data.csv_size()}};
  const auto& [list, entries] =
      *std::max_element(std::begin(lists), std::end(lists), [](auto a, auto b) { return a.second < b.second; });
  if (entries > 0 && data.weights_size() != entries) {
    problems->AddError(positions, kWeightsKey,
                       absl::StrCat("has ", data.weights_size(), " numbers, but ", list, " has ", entries,
                                    entries == 1 ? " entry" : " entries", "; expected one number for each entry"));
  }
  if (std::all_of(data.weights().begin(), data.weights().end(), [](double weight) { return weight == 0; })) {
    problems->AddError(positions, kWeightsKey, "has no number above 0, so no entry would be trained on");
  }
}

void CheckHeldOut(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Data& data = train.data();
  if (data.held_out_size() == 0) return;
  if (data.validation() > 0) {
    problems->AddError(positions, "train.data.validation",
                       "is given together with held_out; evaluation uses either a part of the training data or the "
                       "held-out files; remove one of the two");
  }
  if (train.evaluate().every_steps() == 0) {
    problems->AddWarning(positions, kHeldOutKey, "has no effect: train.evaluate.every_steps is 0");
  }
}

// A job names data in exactly one form, and its model must be able to use that form.
void CheckForms(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Data& data = train.data();
  std::vector<const char*> given;
  bool is_rejected = false;  // an invalid list has been reported already
  const std::pair<const char*, int> forms[] = {{kTextKey, data.text_size()},
                                               {kJsonlKey, data.jsonl_size()},
                                               {kTokensKey, data.tokens_size()},
                                               {kCsvKey, data.csv_size()}};
  for (const auto& [key, entries] : forms) {
    if (entries > 0) given.push_back(key);
    is_rejected = is_rejected || positions.count(key) > 0;
  }
  if (train.has_data() && given.empty() && !is_rejected) {
    problems->AddError(positions, "train.data",
                       "has no text, jsonl, tokens or csv; expected one of them, a list of files, folders or globs");
  }
  for (size_t i = 1; i < given.size(); ++i) {
    problems->AddError(positions, given[i],
                       absl::StrCat("is given together with ", given[0] + sizeof "train.data." - 1,
                                    "; a job has one of text, jsonl, tokens and csv"));
  }
  const bool is_classifier = train.model().family() == v1::MODEL_FAMILY_MLP;
  if (data.csv_size() > 0 && !is_classifier) {
    problems->AddError(positions, kCsvKey,
                       "is only for a classifier (train.model.family: mlp); a language model "
                       "needs text, jsonl or tokens");
  } else if (data.csv_size() == 0 && is_classifier && !given.empty()) {
    problems->AddError(positions, given[0], "is given for a classifier (train.model.family: mlp), which needs csv");
  }
}

// Checks the column of the class, and warns of keys for text, which have no effect on CSV files.
void CheckRows(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Data& data = train.data();
  const auto warn = [&](bool is_given, absl::string_view key) {
    if (is_given) problems->AddWarning(positions, key, "has no effect: train.data.csv has no text");
  };
  if (data.fields().has_label() && data.fields().label().empty()) {
    problems->AddError(positions, "train.data.fields.label",
                       "is empty; expected the name of a column, or remove the key to use the last column");
  }
  v1::DataFields others = data.fields();
  others.clear_label();
  warn(others.ByteSizeLong() > 0, kFieldsKey);
  warn(data.loss() == v1::DATA_LOSS_ALL, kLossKey);
  warn(data.has_tokenizer_path(), kTokenizerPathKey);
  warn(data.separate_documents(), "train.data.separate_documents");
}

// Conversations need a template, which belongs to a tokenizer.
void CheckChats(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Data& data = train.data();
  const bool has_jsonl = data.jsonl_size() > 0, has_tokenizer = !TokenizerPathOf(train).empty();
  if (has_jsonl && data.fields().has_messages() && !has_tokenizer) {
    problems->AddError(positions, kMessagesKey,
                       "needs a tokenizer with a chat template; set train.data.tokenizer_path to its folder");
  }
  if (!data.has_chat_template()) return;
  const auto add = [&](absl::string_view problem) { problems->AddError(positions, kChatTemplateKey, problem); };
  const v1::DataFields& fields = data.fields();
  if (!has_jsonl) {
    add("is given, but only train.data.jsonl has conversations; remove it");
  } else if (fields.ByteSizeLong() > 0 && !fields.has_messages()) {
    add("is given, but train.data.fields names no messages for it to convert; set fields.messages, or remove it");
  } else if (!has_tokenizer) {
    add("is given without a tokenizer, whose special tokens it needs; set train.data.tokenizer_path to its folder");
  }
  if (data.chat_template().find('{') == std::string::npos) {
    add("is no template, because it has no '{'; expected the text of a template (trainctl reads it from a file)");
  } else if (const auto parsed = templates::ParseTemplate(data.chat_template()); !parsed.ok()) {
    add(absl::StrCat("cannot be used: ", parsed.status().message()));
  }
}

}  // namespace

std::string TokenizerPathOf(const v1::Train& train) {
  const v1::Data& data = train.data();
  if (data.has_tokenizer_path() || data.fields().has_input_ids()) return data.tokenizer_path();
  // A model that is read from a folder understands only the tokens of the tokenizer in that folder, so this is the
  // default. A job that uses bytes instead sets train.data.tokenizer.
  return data.has_tokenizer() ? "" : train.model().path();
}

void CheckDataSource(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Data& data = train.data();
  const bool has_jsonl = data.jsonl_size() > 0, has_tokens = data.tokens_size() > 0;
  CheckForms(train, positions, problems);
  CheckWeights(data, positions, problems);
  CheckHeldOut(train, positions, problems);
  CheckChats(train, positions, problems);
  const bool has_fields = data.fields().ByteSizeLong() > 0;
  if (data.csv_size() > 0) return CheckRows(train, positions, problems);
  if (!has_jsonl && has_fields) problems->AddWarning(positions, kFieldsKey, "has no effect: there is no jsonl");
  if (std::string problem = ProblemOfFields(data.fields()); has_jsonl && !problem.empty()) {
    problems->AddError(positions, kFieldsKey, problem);
  }
  const bool names_no_prompt = has_fields && !data.fields().has_prompt() && !data.fields().has_messages();
  if (data.loss() == v1::DATA_LOSS_ALL && (!has_jsonl || names_no_prompt)) {
    problems->AddWarning(positions, kLossKey,
                         "has no effect: it applies to jsonl with prompts and responses, or with messages");
  }
  const bool lacks_vocabulary = !train.model().has_vocabulary() && positions.count("train.model.vocabulary") == 0;
  if (has_tokens && lacks_vocabulary) {
    problems->AddError(positions, "train.model.vocabulary",
                       "is required with train.data.tokens; expected the number of tokens of the tokenizer that made "
                       "them");
    return;
  }
  if (!data.has_tokenizer_path()) return;
  if (data.fields().has_input_ids()) {
    problems->AddWarning(
        positions, kTokenizerPathKey,
        "is used only by trainctl sample: train.data.fields.input_ids are tokens, so training needs no tokenizer");
  } else if (lacks_vocabulary) {
    problems->AddError(positions, "train.model.vocabulary",
                       "is required with train.data.tokenizer_path; expected at least the number of its tokens");
  }
}

}  // namespace trainyard
