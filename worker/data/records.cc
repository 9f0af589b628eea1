#include "worker/data/records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/escape.h"
#include "common/json_nesting.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

using Json = nlohmann::json;

constexpr int kDepthMax = 64;
constexpr size_t kObjectKeysMax = 1'000;  // of one object of a conversation
constexpr size_t kKeysShown = 8;
constexpr size_t kKeyBytes = 60;
constexpr int64_t kIgnoredLabel = -100;  // the convention of PyTorch and transformers

absl::Status Reason(absl::string_view reason) { return absl::InvalidArgumentError(reason); }

std::string Shown(absl::string_view name) { return EscapeText(name.substr(0, kKeyBytes)); }

// `Object`: Json, or a type that keeps the order of keys.
template <typename Object>
absl::StatusOr<Object> ParseRecord(absl::string_view line) {
  if (line.size() > kJsonLineBytesMax) {
    return Reason(absl::StrCat("has ", line.size(), " bytes; at most ", kJsonLineBytesMax, " are accepted in a line"));
  }
  if (JsonNestsDeeperThan(line, kDepthMax))
    return Reason(absl::StrCat("is not usable JSON: nested more than ", kDepthMax, " deep"));
  // A type that keeps the order of keys compares each new key with all others, so an object with too many is refused.
  std::vector<size_t> keys;  // of each object that is open
  bool has_too_many = false;
  const auto counts = [&](int /*depth*/, typename Object::parse_event_t event, Object& /*parsed*/) {
    if (event == Object::parse_event_t::object_start) keys.push_back(0);
    if (event == Object::parse_event_t::object_end) keys.pop_back();
    if (event != Object::parse_event_t::key || ++keys.back() <= kObjectKeysMax) return true;
    has_too_many = true;
    return false;
  };
  try {
    constexpr bool kKeepsOrder = std::is_same_v<Object, nlohmann::ordered_json>;
    Object json =
        kKeepsOrder ? Object::parse(line.begin(), line.end(), counts) : Object::parse(line.begin(), line.end());
    if (has_too_many) return Reason(absl::StrCat("has an object with more than ", kObjectKeysMax, " keys"));
    if (json.is_object()) return json;
    return Reason(absl::StrCat("is not a JSON object but of type ", json.type_name()));
  } catch (const Json::exception& error) {
    // "[json.exception...] parse error at line 1, column 5: syntax error while parsing ... - reason; last read: '...'".
    absl::string_view what = error.what();
    if (const size_t at = what.find("column "); at != absl::string_view::npos) what = what.substr(at);
    what = what.substr(0, what.find("; last read"));
    return Reason(absl::StrCat("is not JSON: ", EscapeText(what)));
  }
}

std::string KeysOf(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(Shown(item.key()));
  return keys.empty() ? "none" : JoinFirst(keys, kKeysShown);
}

absl::StatusOr<const Json*> FieldOf(const Json& json, const std::string& name) {
  const auto it = json.find(name);
  if (it != json.end()) return &*it;
  return Reason(absl::StrCat("has no field '", Shown(name), "'; its fields: ", KeysOf(json)));
}

absl::StatusOr<absl::string_view> TextOf(const Json& json, const std::string& name) {
  ASSIGN_OR_RETURN(const Json* value, FieldOf(json, name));
  if (value->is_string()) return absl::string_view(value->get_ref<const std::string&>());
  return Reason(absl::StrCat("field '", Shown(name), "' is not text but of type ", value->type_name()));
}

// The integers of a list; each must be from 0 to vocabulary - 1, or kIgnoredLabel if that is allowed.
absl::StatusOr<std::vector<int64_t>> TokensOf(const Json& json, const std::string& name, int64_t vocabulary,
                                              bool may_ignore) {
  ASSIGN_OR_RETURN(const Json* value, FieldOf(json, name));
  if (!value->is_array()) {
    return Reason(absl::StrCat("field '", Shown(name), "' is not a list of tokens but of type ", value->type_name()));
  }
  std::vector<int64_t> tokens;
  tokens.reserve(value->size());
  for (const Json& element : *value) {
    const bool fits = element.is_number_unsigned()
                          ? element.get<uint64_t>() < static_cast<uint64_t>(vocabulary)
                          : may_ignore && element.is_number_integer() && element.get<int64_t>() == kIgnoredLabel;
    if (!fits) {
      return Reason(absl::StrCat("field '", Shown(name), "': element ", tokens.size(), " is ",
                                 element.is_number() ? element.dump() : absl::StrCat("of type ", element.type_name()),
                                 "; expected a whole number from 0 to ", vocabulary - 1, " (train.model.vocabulary is ",
                                 vocabulary, ")", may_ignore ? ", or -100" : ""));
    }
    tokens.push_back(element.get<int64_t>());
  }
  return tokens;
}

// Refuses padding, which tokenizers of transformers mark by 0 in the field 'attention_mask', if it would be trained on
// or be seen by the tokens after it. `has_loss`: empty if all tokens have a loss.
absl::Status CheckPadding(const Json& json, const std::vector<bool>& has_loss) {
  const auto mask = json.find("attention_mask");
  if (mask == json.end() || !mask->is_array()) return absl::OkStatus();
  bool is_end = true;  // no token that is attended to follows
  for (size_t i = mask->size(); i-- > 0;) {
    const bool is_padding = (*mask)[i] == 0;
    const bool is_trained_on = has_loss.empty() || (i < has_loss.size() && has_loss[i]);
    if (is_padding && (!is_end || is_trained_on)) {
      return Reason(absl::StrCat("element ", i,
                                 " of 'attention_mask' is 0: the tokens contain padding, which the model would "
                                 "read as text; write them without padding"));
    }
    is_end = is_end && is_padding;
  }
  return absl::OkStatus();
}

absl::Status AddTokens(const Json& json, const RecordRules& rules, TokenChunkWriter& chunk) {
  const RecordFields& fields = rules.fields;
  ASSIGN_OR_RETURN(const std::vector<int64_t> tokens,
                   TokensOf(json, fields.input_ids, rules.vocabulary, /*may_ignore=*/false));
  if (fields.labels.empty()) {
    RETURN_IF_ERROR(CheckPadding(json, /*has_loss=*/{}));
    if (fields.derived && json.contains("labels")) {
      return Reason("has the field 'labels', but the first record has none; name the fields in train.data.fields");
    }
    chunk.AddTokens(tokens, /*begins=*/true);
    chunk.CountRecord(tokens.empty());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> labels,
                   TokensOf(json, fields.labels, rules.vocabulary, /*may_ignore=*/true));
  if (labels.size() != tokens.size()) {
    return Reason(absl::StrCat("field '", Shown(fields.labels), "' has ", labels.size(), " elements, but '",
                               Shown(fields.input_ids), "' has ", tokens.size(), "; there must be one for each token"));
  }
  std::vector<bool> has_loss(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    has_loss[i] = labels[i] != kIgnoredLabel;
    if (!has_loss[i] || labels[i] == tokens[i]) continue;
    return Reason(absl::StrCat("element ", i, " of '", Shown(fields.labels), "' is ", labels[i], ", but that of '",
                               Shown(fields.input_ids), "' is ", tokens[i],
                               "; a label is -100 or the token at the same position"));
  }
  RETURN_IF_ERROR(CheckPadding(json, has_loss));
  const int64_t before = chunk.num_tokens();
  chunk.AddDocument(tokens, has_loss);
  chunk.CountRecord(chunk.num_tokens() == before);
  return absl::OkStatus();
}

absl::Status AddText(const Json& json, const RecordRules& rules, const TextEncoder& encoder, TokenChunkWriter& chunk) {
  ASSIGN_OR_RETURN(const absl::string_view text, TextOf(json, rules.fields.text));
  std::vector<int64_t> tokens;
  if (!text.empty()) {
    RETURN_IF_ERROR(encoder.Append(text, /*begins=*/true, tokens));
    encoder.End(tokens);
  }
  chunk.AddTokens(tokens, /*begins=*/true);
  chunk.CountRecord(tokens.empty());
  return absl::OkStatus();
}

absl::Status AddPair(const Json& json, const RecordRules& rules, const TextEncoder& encoder, TokenChunkWriter& chunk) {
  ASSIGN_OR_RETURN(const absl::string_view prompt, TextOf(json, rules.fields.prompt));
  ASSIGN_OR_RETURN(const absl::string_view response, TextOf(json, rules.fields.response));
  std::vector<int64_t> tokens;
  RETURN_IF_ERROR(encoder.Append(prompt, /*begins=*/true, tokens));
  const size_t prompt_tokens = rules.loss_on_prompt ? 0 : tokens.size();
  if (!response.empty()) {
    RETURN_IF_ERROR(encoder.Append(response, /*begins=*/false, tokens));
    encoder.End(tokens);
  }
  std::vector<bool> has_loss(tokens.size());
  for (size_t i = prompt_tokens; i < tokens.size() && !response.empty(); ++i) has_loss[i] = true;
  const int64_t before = chunk.num_tokens();
  chunk.AddDocument(tokens, has_loss);
  chunk.CountRecord(chunk.num_tokens() == before);
  return absl::OkStatus();
}

absl::Status AddChat(absl::string_view line, const RecordRules& rules, const TextEncoder& encoder,
                     TokenChunkWriter& chunk) {
  ASSIGN_OR_RETURN(const ChatTokens chat, TokenizeChatLine(line, rules, encoder));
  const int64_t before = chunk.num_tokens();
  chunk.AddDocument(chat.tokens, chat.is_reply);
  chunk.CountRecord(chunk.num_tokens() == before);
  return absl::OkStatus();
}

}  // namespace

std::string RecordRules::identity() const {
  // JSON separates the names unambiguously, so different rules have different identities.
  Json json = {{"text", fields.text},           {"prompt", fields.prompt}, {"response", fields.response},
               {"input_ids", fields.input_ids}, {"labels", fields.labels}, {"loss_on_prompt", loss_on_prompt}};
  // This key and those below are added only if they have an effect, so that caches of earlier versions stay valid.
  if (chunk_kind() == ChunkKind::kStreamWithStarts) json["starts"] = true;
  if (!fields.messages.empty()) json["messages"] = fields.messages;
  if (chat != nullptr) json["chat"] = chat->identity();
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<RecordFields> FieldsOfRecord(absl::string_view line) {
  ASSIGN_OR_RETURN(const Json json, ParseRecord<Json>(line));
  std::vector<RecordFields> forms;
  if (json.contains("input_ids")) {
    forms.push_back({.input_ids = "input_ids", .labels = json.contains("labels") ? "labels" : ""});
  }
  if (json.contains("text")) forms.push_back({.text = "text"});
  if (json.contains("prompt") && json.contains("response")) {
    forms.push_back({.prompt = "prompt", .response = "response"});
  }
  if (forms.empty() && json.contains("messages")) forms.push_back({.messages = "messages"});
  if (forms.size() == 1) {
    forms[0].derived = true;
    return forms[0];
  }
  return Reason(absl::StrCat("has ", forms.empty() ? "none" : "several",
                             " of the forms input_ids (and labels), text, prompt with response, messages; its fields: ",
                             KeysOf(json), "; name the fields to use in train.data.fields"));
}

absl::StatusOr<ChatTokens> TokenizeChatLine(absl::string_view line, const RecordRules& rules,
                                            const TextEncoder& encoder) {
  if (line.size() > kChatLineBytesMax) {
    return Reason(absl::StrCat("has ", line.size(), " bytes; at most ", kChatLineBytesMax,
                               " are accepted in a line with a conversation"));
  }
  // The keys of messages have an order, which templates may print.
  ASSIGN_OR_RETURN(const nlohmann::ordered_json json, ParseRecord<nlohmann::ordered_json>(line));
  ASSIGN_OR_RETURN(ChatTokens chat, TokenizeChat(json, rules.fields.messages, *rules.chat, encoder));
  if (rules.loss_on_prompt) chat.is_reply.assign(chat.tokens.size(), true);
  return chat;
}

absl::Status AddRecord(absl::string_view line, const RecordRules& rules, const TextEncoder* encoder,
                       TokenChunkWriter& chunk) {
  if (!rules.fields.messages.empty()) return AddChat(line, rules, *encoder, chunk);
  ASSIGN_OR_RETURN(const Json json, ParseRecord<Json>(line));
  if (!rules.fields.input_ids.empty()) return AddTokens(json, rules, chunk);
  return rules.fields.prompt.empty() ? AddText(json, rules, *encoder, chunk) : AddPair(json, rules, *encoder, chunk);
}

size_t FindInvalidUtf8(absl::string_view text) {
  const size_t valid = utf8::ValidPrefix(text);
  return valid == text.size() ? absl::string_view::npos : valid;
}

}  // namespace trainyard
