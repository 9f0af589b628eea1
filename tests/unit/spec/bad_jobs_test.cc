// Invalid job files: each row has one mistake and the exact message.
#include <gtest/gtest.h>

#include <ostream>

#include "absl/strings/str_replace.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

struct BadJob {
  const char* name;
  const char* from;  // this text of kGoodJob
  const char* to;    // becomes this
  const char* errors;
};

std::ostream& operator<<(std::ostream& out, const BadJob& row) { return out << row.name; }

class BadJobTest : public testing::TestWithParam<BadJob> {};

TEST_P(BadJobTest, IsRefusedWithOneMessage) {
  const BadJob& row = GetParam();

  ReadJob read = Read(absl::StrReplaceAll(kGoodJob, {{row.from, row.to}}));

  EXPECT_EQ(read.Errors(), row.errors);
}

// Keys, types and ranges.
const BadJob kValues[] = {
    {"misspelt_key", "layers: 2", "layres: 2",
     "job.yaml:3:3: train.model.layers: is required; expected a whole number from 1 to 1024\n"
     "job.yaml:4:5: train.model: unknown key 'layres'; did you mean 'layers'? Valid here: family, preset, layers, "
     "heads, width, context, vocabulary, dropout, init_from, kv_heads, head_width, inner, norm_eps, tied, "
     "attention_bias, mlp_bias, rope, window, path, config"},
    {"key_of_another_section", "  steps: 10", "  steps: 10\n  lr: 1",
     "job.yaml:14:3: train: unknown key 'lr'; it belongs at train.optimizer.lr. Valid here: model, data, batch, "
     "optimizer, schedule, precision, steps, evaluate, seed, loss_scale, freeze, nonfinite_limit, lora"},
    {"unknown_key", "  steps: 10", "  steps: 10\n  colour: blue",
     "job.yaml:14:3: train: unknown key 'colour'. Valid here: model, data, batch, optimizer, schedule, precision, "
     "steps, evaluate, seed, loss_scale, freeze, nonfinite_limit, lora"},
    {"text_for_a_number", "steps: 10", "steps: many",
     "job.yaml:13:10: train.steps: expected a whole number from 1 to 1000000000000, found 'many'"},
    {"quoted_number", "steps: 10", "steps: '10'",
     "job.yaml:13:10: train.steps: expected a whole number from 1 to 1000000000000, found the string '10'"},
    {"underscores_in_a_number", "steps: 10", "steps: 1_000",
     "job.yaml:13:10: train.steps: expected a whole number from 1 to 1000000000000, found '1_000'"},
    {"fraction_of_a_step", "steps: 10", "steps: 10.5",
     "job.yaml:13:10: train.steps: expected a whole number from 1 to 1000000000000, found 10.5"},
    {"list_for_a_number", "steps: 10", "steps: [1, 2]",
     "job.yaml:13:10: train.steps: expected a whole number from 1 to 1000000000000, found a list"},
    {"map_for_a_number", "steps: 10", "steps: {a: 1}",
     "job.yaml:13:10: train.steps: expected a whole number from 1 to 1000000000000, found a map"},
    {"no_value", "steps: 10",
     "steps:", "job.yaml:13:3: train.steps: has no value; expected a whole number from 1 to 1000000000000"},
    {"no_steps", "steps: 10", "seed: 1",
     "job.yaml:2:1: train.steps: is required; expected a whole number from 1 to 1000000000000"},
    {"zero_steps", "steps: 10", "steps: 0", "job.yaml:13:10: train.steps: must be from 1 to 1000000000000, found 0"},
    {"negative_width", "width: 16", "width: -16",
     "job.yaml:6:12: train.model.width: must be from 1 to 65536, found -16"},
    {"huge_layers", "layers: 2", "layers: 1000000000000",
     "job.yaml:4:13: train.model.layers: must be from 1 to 1024, found 1000000000000"},
    {"number_beyond_64_bits", "layers: 2", "layers: 99999999999999999999999",
     "job.yaml:4:13: train.model.layers: must be from 1 to 1024, found 99999999999999999999999"},
};

// Values that contradict each other.
const BadJob kTogether[] = {
    {"former_name_against_the_present", "  ranks: 2", "  ranks: 2\n  product_kernels: mkl\n  mkl_avx512: on",
     "job.yaml:17:15: resources.mkl_avx512: is on, which means resources.product_kernels: mkl_intel, but "
     "resources.product_kernels is mkl; remove resources.mkl_avx512, which is its former name"},
    {"former_name_against_auto", "  ranks: 2", "  ranks: 2\n  mkl_avx512: off\n  product_kernels: auto",
     "job.yaml:16:15: resources.mkl_avx512: is off, which means resources.product_kernels: mkl, but "
     "resources.product_kernels is auto; remove resources.mkl_avx512, which is its former name"},
    {"heads_not_dividing_width", "heads: 2", "heads: 3",
     "job.yaml:5:12: train.model.heads: width 16 is not a multiple of heads 3; choose heads 1, 2, 4, 8 or width 15 or "
     "18"},
    {"kv_heads_not_dividing_heads", "heads: 2", "family: llama\n    heads: 2\n    kv_heads: 3",
     "job.yaml:7:15: train.model.kv_heads: must divide heads 2; found 3; choose 1, 2"},
    {"dropout_of_llama", "heads: 2", "family: mistral\n    heads: 2\n    dropout: 0.1",
     "job.yaml:7:14: train.model.dropout: must be 0, because mistral has no dropout; found 0.1"},
    {"biases_of_qwen2", "heads: 2", "family: qwen2\n    heads: 2\n    attention_bias: none",
     "job.yaml:3:3: train.model: a qwen2 model: attention_bias must be qkv, because the family has no other kind; "
     "found none"},
    {"linear_rope_without_factor", "heads: 2", "family: llama\n    heads: 2\n    rope: {scaling: linear}",
     "job.yaml:7:5: train.model.rope.factor: is required by rope.scaling linear; expected a number of at least 1"},
    {"length_beyond_the_context", "micro: 2", "micro: 2\n    length: 9",
     "job.yaml:13:13: train.batch.length: is 9, but the model has only 8 positions (train.model.context)"},
    {"length_beyond_the_window", "heads: 2", "family: mistral\n    heads: 2\n    window: 4",
     "job.yaml:12:3: train.batch.length: is 8, but the model attends to 4 tokens at most (train.model.window), and "
     "longer "
     "sequences are not implemented; choose a length of at most 4"},
    {"path_without_config", "heads: 2", "heads: 2\n    path: /models/x",
     "job.yaml:6:11: train.model.path: needs the text of its config.json in train.model.config: submit the job with "
     "trainctl, which reads the file, or give that key"},
    {"micro_not_dividing_global", "micro: 2", "micro: 3",
     "job.yaml:12:12: train.batch.micro: global 8 is not a multiple of micro 3: 3 x 2 = 6, 3 x 3 = 9; choose micro "
     "1, 2, 4, 8 or global 6 or 9"},
    {"micro_above_global", "micro: 2", "micro: 16",
     "job.yaml:12:12: train.batch.micro: global 8 is not a multiple of micro 16: 16 x 1 = 16; choose micro 1, 2, "
     "4, 8 or global 16"},
    {"tensor_too_large", "context: 8\n  data:\n    text: [corpus]\n  batch:\n    global: 8\n    micro: 2",
     "context: 1048576\n  data:\n    text: [corpus]\n  batch:\n    global: 8\n    micro: 2",
     "job.yaml:2:1: train: the attention scores of one micro-batch would have micro 2 x heads 2 x length 1048576 "
     "x length 1048576 elements, more than the 274877906944 that this program supports; choose smaller sizes"},
    {"too_many_parameters", "layers: 2\n    heads: 2\n    width: 16", "layers: 1024\n    heads: 2\n    width: 65536",
     "job.yaml:3:3: train.model: has 52777447981056 parameters, more than the 4398046511104 that this program "
     "supports; choose fewer layers or a smaller width"},
    {"small_vocabulary", "context: 8", "context: 8\n    vocabulary: 100",
     "job.yaml:8:17: train.model.vocabulary: must be at least 256, the size of the tokenizer 'bytes'; found 100"},
    {"host_twice", "  ranks: 2", "  ranks: 2\n  hosts: [w1, w2, w1]",
     "job.yaml:16:10: resources.hosts: names 'w1' twice"},
    {"invalid_host_name", "  ranks: 2", "  ranks: 2\n  exclude_hosts: ['a b']",
     "job.yaml:16:18: resources.exclude_hosts: 'a b' cannot be the name of a host: 1 to 253 letters, digits, '-', '_' "
     "or '.', as `trainctl cluster` shows them"},
    {"host_requested_and_excluded", "  ranks: 2", "  ranks: 2\n  hosts: [w1]\n  exclude_hosts: [w1]",
     "job.yaml:17:18: resources.exclude_hosts: excludes 'w1', which resources.hosts requests"},
    {"unknown_reaction_to_a_hang", "  ranks: 2", "  ranks: 2\nrecovery: {on_hang: panic}",
     "job.yaml:16:21: recovery.on_hang: expected one of restart, notify, found 'panic'"},
    {"abandoned_after_zero_seconds", "  ranks: 2", "  ranks: 2\nrecovery: {abandon_after_s: 0}",
     "job.yaml:16:29: recovery.abandon_after_s: must be from 1 to 1000000000, found 0"},
};

// Names, lists and texts.
const BadJob kNamesAndLists[] = {
    {"misspelt_schedule_kind", "  steps: 10", "  steps: 10\n  schedule: {kind: cosinus}",
     "job.yaml:14:20: train.schedule.kind: expected one of cosine, linear, constant, inverse_sqrt, wsd, found "
     "'cosinus'; did you mean "
     "'cosine'?"},
    {"yes_for_a_boolean", "  ranks: 2", "  ranks: 2\nparallel: {overlap: yes}",
     "job.yaml:16:21: parallel.overlap: expected true or false, found 'yes'"},
    {"one_path_without_a_list", "text: [corpus]", "text: corpus",
     "job.yaml:9:11: train.data.text: expected a list in which each element is a path, found a single value; write "
     "[corpus]"},
    {"no_path", "text: [corpus]", "text: []",
     "job.yaml:9:11: train.data.text: expected a list in which each element is a path, found a list of 0"},
    {"no_data", "text: [corpus]", "validation: 0.1",
     "job.yaml:8:3: train.data: has no text, jsonl, tokens or csv; expected one of them, a list of files, folders or "
     "globs"},
    {"text_and_jsonl", "text: [corpus]", "text: [corpus]\n    jsonl: [a.jsonl]",
     "job.yaml:10:12: train.data.jsonl: is given together with text; a job has one of text, jsonl, tokens and csv"},
    {"jsonl_and_tokens", "text: [corpus]", "jsonl: [a.jsonl]\n    tokens: [a.bin]",
     "job.yaml:3:3: train.model.vocabulary: is required with train.data.tokens; expected the number of tokens of the "
     "tokenizer that made them\njob.yaml:10:13: train.data.tokens: is given together with jsonl; a job has one of "
     "text, jsonl, tokens and csv"},
    {"too_few_weights", "text: [corpus]", "text: [a, b, c]\n    weights: [0.5, 0.5]",
     "job.yaml:10:14: train.data.weights: has 2 numbers, but text has 3 entries; expected one number for each entry"},
    {"weights_of_nothing", "text: [corpus]", "text: [a, b]\n    weights: [0, 0]",
     "job.yaml:10:14: train.data.weights: has no number above 0, so no entry would be trained on"},
    {"tokens_without_a_vocabulary", "text: [corpus]", "tokens: [a.bin]",
     "job.yaml:3:3: train.model.vocabulary: is required with train.data.tokens; expected the number of tokens of the "
     "tokenizer that made them"},
    {"two_parts_for_evaluation", "text: [corpus]", "text: [corpus]\n    validation: 0.1\n    held_out: [b]",
     "job.yaml:10:17: train.data.validation: is given together with held_out; evaluation uses either a part of the "
     "training data or the held-out files; remove one of the two"},
    {"prompt_without_response", "text: [corpus]", "jsonl: [a.jsonl]\n    fields: {prompt: question}",
     "job.yaml:10:5: train.data.fields: names a prompt without a response; name both"},
    {"empty_name_of_a_field", "text: [corpus]", "jsonl: [a.jsonl]\n    fields: {text: ''}",
     "job.yaml:10:5: train.data.fields: has an empty name for text; expected the name of a field, or remove the key"},
    {"two_forms_of_records", "text: [corpus]", "jsonl: [a.jsonl]\n    fields: {text: a, input_ids: b}",
     "job.yaml:10:5: train.data.fields: names fields of several forms; choose text, or prompt and response, or "
     "input_ids and labels, or messages"},
    {"labels_without_tokens", "text: [corpus]", "jsonl: [a.jsonl]\n    fields: {labels: b}",
     "job.yaml:10:5: train.data.fields: names labels without input_ids; name both"},
    {"messages_without_a_tokenizer", "text: [corpus]", "jsonl: [a.jsonl]\n    fields: {messages: turns}",
     "job.yaml:10:24: train.data.fields.messages: needs a tokenizer with a chat template; set "
     "train.data.tokenizer_path to its folder"},
    {"chat_template_without_conversations", "text: [corpus]", "text: [corpus]\n    chat_template: '{{ messages }}'",
     "job.yaml:10:20: train.data.chat_template: is given, but only train.data.jsonl has conversations; remove it"},
    {"chat_template_of_other_fields", "text: [corpus]",
     "jsonl: [a.jsonl]\n    fields: {text: a}\n    chat_template: '{{ messages }}'",
     "job.yaml:11:20: train.data.chat_template: is given, but train.data.fields names no messages for it to "
     "convert; set fields.messages, or remove it"},
    {"all_problems_of_a_chat_template", "text: [corpus]",
     "jsonl: [a.jsonl]\n    fields: {messages: turns}\n    chat_template: \"a\\n{% fro m in messages %}\"",
     "job.yaml:10:24: train.data.fields.messages: needs a tokenizer with a chat template; set "
     "train.data.tokenizer_path to its folder\n"
     "job.yaml:11:20: train.data.chat_template: is given without a tokenizer, whose special tokens it needs; set "
     "train.data.tokenizer_path to its folder\n"
     "job.yaml:11:20: train.data.chat_template: cannot be used: line 2: the statement {% fro %} is not expected here, "
     "or not supported; supported are if, for, set, macro, with, filter, generation, raw, break and continue"},
    {"chat_template_that_is_a_file", "text: [corpus]", "jsonl: [a.jsonl]\n    chat_template: chat.jinja",
     "job.yaml:10:20: train.data.chat_template: is given without a tokenizer, whose special tokens it needs; set "
     "train.data.tokenizer_path to its folder\n"
     "job.yaml:10:20: train.data.chat_template: is no template, because it has no '{'; expected the text of a "
     "template (trainctl reads it from a file)"},
    {"tokenizer_without_vocabulary", "text: [corpus]", "text: [corpus]\n    tokenizer_path: tokenizer.json",
     "job.yaml:3:3: train.model.vocabulary: is required with train.data.tokenizer_path; expected at least the number "
     "of its tokens"},
    {"number_as_path", "text: [corpus]", "text: [1]",
     "job.yaml:9:12: train.data.text: expected a list in which each element is a path, found 1; put it in quotes if it "
     "is a "
     "string"},
    {"betas_above_one", "  steps: 10", "  steps: 10\n  optimizer: {betas: [0.9, 1.5]}",
     "job.yaml:14:28: train.optimizer.betas: must be from 0 to 0.9999999, found 1.5"},
    {"one_beta", "  steps: 10", "  steps: 10\n  optimizer: {betas: [0.9]}",
     "job.yaml:14:22: train.optimizer.betas: expected a list of 2 in which each element is a number from 0 to "
     "0.9999999, found a list of "
     "1"},
    {"eps_of_zero", "  steps: 10", "  steps: 10\n  optimizer: {eps: 0}",
     "job.yaml:14:20: train.optimizer.eps: must be above 0 and at most 1, found 0"},
    {"infinite_learning_rate", "  steps: 10", "  steps: 10\n  optimizer: {lr: .inf}",
     "job.yaml:14:19: train.optimizer.lr: expected a number from 0 to 1000, found '.inf'"},
    {"dropout_of_one", "context: 8", "context: 8\n    dropout: 1",
     "job.yaml:8:14: train.model.dropout: must be from 0 to 0.9, found 1"},
    {"capital_in_name", "name: tiny", "name: Tiny",
     "job.yaml:1:7: name: must consist of 1 to 63 characters a-z, 0-9 and '-', starting with a letter; found 'Tiny'"},
    {"number_as_name", "name: tiny", "name: 5",
     "job.yaml:1:7: name: expected a string, found 5; put it in quotes if it is a string"},
    {"unknown_preset", "layers: 2", "layers: 2\n    preset: lab-10n",
     "job.yaml:5:13: train.model.preset: no preset is called 'lab-10n'; did you mean 'lab-10m'? The presets are "
     "lab-tiny, lab-10m, lab-60m, gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama2-7b, llama2-13b, llama2-70b, "
     "llama3-8b, "
     "llama3-70b, llama3.2-1b, llama3.2-3b, mistral-7b, qwen2.5-0.5b, qwen2.5-1.5b"},
    {"unknown_device", "  ranks: 2", "  ranks: 2\n  device: tpu",
     "job.yaml:16:11: resources.device: expected one of cpu, cuda or auto, found 'tpu'; did you mean 'cpu'?"},
};

// The file as a whole.
const BadJob kFiles[] = {
    {"key_twice", "  steps: 10", "  steps: 10\n  steps: 20", "job.yaml:14:3: train.steps: is given twice; remove one"},
    {"merge_key", "  steps: 10", "  steps: 10\n  <<: {seed: 1}",
     "job.yaml:14:3: train: merge keys (<<) are not supported; write the keys out, or use *alias for the whole value"},
    {"two_documents", "name: tiny", "name: tiny\n---\nname: other",
     "job.yaml:2:1: there is text after the end of the document, or a second document; a file contains one document"},
    {"stray_bracket", "  ranks: 2\n", "  ranks: 2\n]\n", "job.yaml:16:1: expected `key: value`, found ']'"},
    {"unclosed_list", "name: tiny", "name: [unclosed",
     "job.yaml:2:1: expected ',' or ']' in the list of line 1, found 'train:'"},
    {"unclosed_quote", "name: tiny", "name: 'tiny",
     "job.yaml:1:7: a quote that opens here is not closed on this line; a value cannot continue on the next line"},
    {"quote_that_swallows_keys", "steps: 10\nresources:\n  ranks: 2",
     "steps: 10\n  freeze: [\"wpe\nresources:\n  ranks: 2\"]",
     "job.yaml:14:12: a quote that opens here is not closed on this line; a value cannot continue on the next line"},
    {"value_over_two_lines", "name: tiny", "name: tiny\n  job",
     "job.yaml:2:3: the line is indented by 2 spaces, where 0 are expected; a value cannot continue on the next line"},
    {"block_scalar", "name: tiny", "name: |\n  tiny",
     "job.yaml:1:7: values over several lines (| and >) are not supported; write the value on one line"},
    {"tab", "  steps: 10", "\tsteps: 10", "job.yaml:13:1: holds a tab; YAML is indented and separated by spaces"},
    {"tab_after_a_value", "steps: 10", "steps: 10\t",
     "job.yaml:13:12: holds a tab; YAML is indented and separated by spaces"},
    {"deep_nesting", "  steps: 10", "  steps: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
     "job.yaml:13:72: this is nested more than 64 levels deep"},
    {"second_colon", "name: tiny", "name: a: b",
     "job.yaml:1:8: there is a second ': ' on this line; put the value in quotes if it is a string"},
    {"wrong_dedent", "    heads: 2", "   heads: 2",
     "job.yaml:5:4: the line is indented by 3 spaces, where 2 are expected; a value cannot continue on the next line"},
    {"tag", "name: tiny", "name: !!str tiny",
     "job.yaml:1:7: tags (!) are not supported; put the value in quotes if it is a string"},
    {"control_character", "name: tiny", "name: ti\x01ny",
     "job.yaml:1:9: holds the control character 1, which YAML does not allow"},
    {"not_utf8", "name: tiny", "name: ti\xffny", "job.yaml:1:9: is not UTF-8 text"},
};

std::string BadJobName(const testing::TestParamInfo<BadJob>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Values, BadJobTest, testing::ValuesIn(kValues), BadJobName);
INSTANTIATE_TEST_SUITE_P(Together, BadJobTest, testing::ValuesIn(kTogether), BadJobName);
INSTANTIATE_TEST_SUITE_P(NamesAndLists, BadJobTest, testing::ValuesIn(kNamesAndLists), BadJobName);
INSTANTIATE_TEST_SUITE_P(Files, BadJobTest, testing::ValuesIn(kFiles), BadJobName);

TEST(BadJobs, EmptyFile_ListsTheRequiredKeys) {
  EXPECT_EQ(Read("").Errors(),
            "job.yaml: name: is required; expected a string\n"
            "job.yaml: train: is required; expected a map with the keys model, data, batch, steps and more (or "
            "`command`, to run a program, or `probe`, to measure hosts instead)");
}

TEST(BadJobs, TrainAndProbeTogetherAreRefused) {
  EXPECT_EQ(Read(absl::StrCat(kGoodJob, "probe: {matmul_size: 64}\n")).Errors(),
            "job.yaml:16:1: probe: measures hosts instead of training a model; give either train or probe, not both");
}

TEST(BadJobs, ProbeNeedsARankOnEveryNamedHost) {
  EXPECT_EQ(
      Read("name: p\nprobe: {matmul_size: 64}\nresources: {hosts: [a, b]}\n").Errors(),
      "job.yaml:3:1: resources.ranks: is 1, but resources.hosts names 2 hosts, and a probe has a rank on each: set "
      "ranks to 2");
}

TEST(BadJobs, AllProblemsAreReportedInTheOrderOfTheFile) {
  ReadJob read = Read("name: Small\ntrain:\n  modle: {layers: 1}\n  steps: -1\nresources: {rank: 2}\n");

  EXPECT_EQ(read.problems.error_count(), 7);
  std::vector<int> lines;
  for (const Problem& problem : read.problems.Errors()) lines.push_back(problem.position.line);
  EXPECT_EQ(lines, std::vector<int>({1, 2, 2, 2, 3, 4, 5}));
}

TEST(BadJobs, ReportHasALimitAndCountsTheRest) {
  std::string text = kGoodJob;
  for (int i = 0; i < 150; ++i) text += "k" + std::to_string(1000 + i) + ": 1\n";

  ReadJob read = Read(text);

  EXPECT_EQ(read.problems.error_count(), 150);
  EXPECT_EQ(read.problems.all().size(), 100u);
  EXPECT_NE(read.problems.ToStatus().message().find("and 50 more"), absl::string_view::npos);
}

TEST(BadJobs, FileAboveTheLimitIsNotParsed) {
  EXPECT_EQ(Read(std::string((1 << 20) + 1, '#')).Errors(), "job.yaml: is 1048577 bytes; at most 1048576 are read");
}

struct JobWithWarning {
  const char* name;
  const char* from;
  const char* to;
  const char* warnings;
};

TEST(Warnings, ListKeysWithoutEffectAndIntervalsBeyondTheSteps) {
  const JobWithWarning rows[] = {
      {"none", "", "", ""},
      {"warm-up", "  steps: 10", "  steps: 10\n  schedule: {warmup_steps: 11}",
       "job.yaml:14:28: warning: train.schedule.warmup_steps: is 11, beyond steps 10: the learning rate never "
       "reaches its peak"},
      {"evaluation", "  steps: 10", "  steps: 10\n  evaluate: {every_steps: 11}",
       "job.yaml:14:27: warning: train.evaluate.every_steps: is 11, beyond steps 10: the only evaluation follows "
       "the last step"},
      {"save", "  ranks: 2", "  ranks: 2\ncheckpoint: {every_steps: 11}",
       "job.yaml:16:27: warning: checkpoint.every_steps: is 11, beyond steps 10: only the last step is saved"},
      {"keep_every while all are kept", "  ranks: 2", "  ranks: 2\ncheckpoint: {keep: 0, keep_every: 5}",
       "job.yaml:16:35: warning: checkpoint.keep_every: has no effect: checkpoint.keep is 0, so none is removed"},
      {"a whole optimizer in shards", "  ranks: 2", "  ranks: 2\ncheckpoint: {full_optimizer: true}",
       "job.yaml:16:30: warning: checkpoint.full_optimizer: has no effect: only checkpoint.format full writes "
       "the optimizer whole"},
      {"ratio of a constant schedule", "  steps: 10", "  steps: 10\n  schedule: {kind: constant, min_ratio: 0.5}",
       "job.yaml:14:41: warning: train.schedule.min_ratio: has no effect: the schedule is constant"},
      {"no validation", "text: [corpus]", "text: [corpus]\n    validation: 0\n  evaluate: {every_steps: 5}",
       "job.yaml:11:27: warning: train.evaluate.every_steps: has no effect: train.data.validation is 0, so there "
       "is no text to evaluate on"},
      {"held out for nothing", "text: [corpus]", "text: [corpus]\n    held_out: [b]",
       "job.yaml:10:15: warning: train.data.held_out: has no effect: train.evaluate.every_steps is 0"},
      {"held out", "text: [corpus]", "text: [corpus]\n    held_out: [b]\n  evaluate: {every_steps: 5}", ""},
      {"no evaluation", "  steps: 10", "  steps: 10\n  evaluate: {batches: 3}",
       "job.yaml:14:23: warning: train.evaluate.batches: has no effect: train.evaluate.every_steps is 0, so there "
       "is no evaluation"},
      {"one rank", "  ranks: 2", "  ranks: 1\nparallel: {overlap: false}",
       "job.yaml:16:21: warning: parallel.overlap: has no effect: a job of one rank reduces nothing"},
      {"probe that saves", kGoodJob,
       "name: p\nprobe: {matmul_size: 64}\ncheckpoint: {keep: 1}\nparallel: {overlap: true}\n",
       "job.yaml:3:1: warning: checkpoint: has no effect: a probe saves nothing\n"
       "job.yaml:4:1: warning: parallel: has no effect: a probe trains nothing"},
      {"uneven deal", "ranks: 2", "ranks: 3",
       "job.yaml:12:12: warning: train.batch.micro: global 8 / micro 2 = 4 micro-batches leave the 3 ranks idle "
       "for 33 % of a step's computation; choose ranks 1, 2, 4 or global 6 or 12"},
      {"uneven deal of auto", "micro: 2\n  steps: 10\nresources:\n  ranks: 2",
       "micro: auto\n  steps: 10\nresources:\n  ranks: 3",
       "job.yaml:11:13: warning: train.batch.global: global 8 / micro 1 = 8 micro-batches leave the 3 ranks idle "
       "for 11 % of a step's computation; choose ranks 1, 2, 4, 8 or global 6 or 9"},
      {"hashes of one rank", "  ranks: 2", "  ranks: 1\ndiagnostics: {hash_every_steps: 5}",
       "job.yaml:16:33: warning: diagnostics.hash_every_steps: has no effect: one rank has no other to compare its "
       "parameters with"},
      {"hashes after the last step", "  ranks: 2", "  ranks: 2\ndiagnostics: {events: true, hash_every_steps: 11}",
       "job.yaml:16:47: warning: diagnostics.hash_every_steps: has no effect: it is 11, beyond steps 10"},
      {"former name", "  ranks: 2", "  ranks: 2\n  mkl_avx512: on",
       "job.yaml:16:15: warning: resources.mkl_avx512: is deprecated: the key is resources.product_kernels now; write "
       "resources.product_kernels: mkl_intel"},
      {"former name with auto", "  ranks: 2", "  ranks: 2\n  mkl_avx512: auto",
       "job.yaml:16:15: warning: resources.mkl_avx512: is deprecated: the key is resources.product_kernels now; write "
       "resources.product_kernels: auto"},
      {"both names with one meaning", "  ranks: 2", "  ranks: 2\n  mkl_avx512: off\n  product_kernels: mkl",
       "job.yaml:16:15: warning: resources.mkl_avx512: is deprecated: the key is resources.product_kernels now; write "
       "resources.product_kernels: mkl"},
      {"learning rate of zero", "  steps: 10", "  steps: 10\n  optimizer: {lr: 0}",
       "job.yaml:14:19: warning: train.optimizer.lr: is 0: the model learns nothing"},
  };
  for (const JobWithWarning& row : rows) {
    ReadJob read = Read(*row.from == '\0' ? kGoodJob : absl::StrReplaceAll(kGoodJob, {{row.from, row.to}}));

    EXPECT_EQ(read.Errors(), "") << row.name;
    EXPECT_EQ(read.Warnings(), row.warnings) << row.name;
  }
}

}  // namespace
}  // namespace trainyard
