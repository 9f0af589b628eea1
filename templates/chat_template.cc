#include "templates/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/json_nesting.h"
#include "common/limits.h"
#include "common/name_exists.h"
#include "common/status_macros.h"
#include "templates/json_value.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using templates::Dict;
using templates::Kind;
using templates::Value;

constexpr size_t kTemplateBytes = 1 << 20;
constexpr int kConfigDepthMax = 64;
constexpr absl::string_view kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                "pad_token", "cls_token", "mask_token"};
// Classes of transformers without special tokens of their own.
constexpr absl::string_view kPlainClasses[] = {"PreTrainedTokenizerFast", "TokenizersBackend"};
// The names under which a message may have its reasoning, the current one of transformers first.
constexpr absl::string_view kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

// What a folder says about its template.
struct Source {
  std::string name = {};  // for messages
  std::string text = {};
  bool has_tool_template = false;
};

absl::StatusOr<Json> ReadConfig(const fs::path& path) {
  if (!NameExists(path)) return Json::object();
  ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path.string(), limits::kTokenizerFileBytes));
  Json json =
      JsonNestsDeeperThan(text, kConfigDepthMax) ? Json() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a JSON object"));
}

absl::StatusOr<Source> ReadSource(const fs::path& folder, const Json& config) {
  std::error_code ignored;
  const fs::path own = folder / "chat_template.jinja";
  if (NameExists(own)) {
    const fs::path for_tools = folder / "additional_chat_templates" / "tool_use.jinja";
    Source source{.name = own.string(), .has_tool_template = fs::exists(for_tools, ignored)};
    ASSIGN_OR_RETURN(source.text, ReadRegularFile(source.name, kTemplateBytes));
    return source;
  }
  Source source{.name = absl::StrCat((folder / "tokenizer_config.json").string(), ": chat_template")};
  const auto found = config.find("chat_template");
  if (found != config.end() && found->is_string()) {
    source.text = found->get<std::string>();
    return source;
  }
  bool has_default = false;
  if (found != config.end() && found->is_array()) {
    for (const Json& named : *found) {
      if (!named.is_object() || !named.contains("name") || !named.contains("template")) continue;
      if (!named["template"].is_string()) continue;
      if (named["name"] == "tool_use") source.has_tool_template = true;
      if (named["name"] != "default") continue;
      has_default = true;
      source.text = named["template"].get<std::string>();
    }
  }
  if (has_default) return source;
  return absl::InvalidArgumentError(
      absl::StrCat(folder.string(),
                   " has no chat template: neither chat_template.jinja nor 'chat_template' (of the name "
                   "'default' if there are several) in tokenizer_config.json; write one to chat_template.jinja there"));
}

// The content of a special token, which may be an object. Nullopt: the file does not say; an empty text: null.
std::optional<std::string> SpecialToken(const Json& config, absl::string_view name) {
  const auto found = config.find(std::string(name));
  if (found == config.end()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  return "";
}

absl::Status AddSpecialTokens(const fs::path& folder, const Json& config, const templates::ParsedTemplate& parsed,
                              templates::Context& context) {
  ASSIGN_OR_RETURN(const Json map, ReadConfig(folder / "special_tokens_map.json"));
  const auto type = config.find("tokenizer_class");
  const bool is_plain = type != config.end() && type->is_string() &&
                        std::find(std::begin(kPlainClasses), std::end(kPlainClasses), type->get<std::string>()) !=
                            std::end(kPlainClasses);
  for (const absl::string_view name : kSpecialTokens) {
    std::optional<std::string> token = SpecialToken(config, name);
    if (!token) token = SpecialToken(map, name);
    if (token && !token->empty()) context.emplace_back(name, Value::Text(*token));
    const bool may_have_default = name == "bos_token" || name == "eos_token" || name == "unk_token";
    if (token || is_plain || !may_have_default || !parsed.reads.contains(std::string(name))) continue;
    return absl::InvalidArgumentError(absl::StrCat("the template reads '", name, "', but ",
                                                   (folder / "tokenizer_config.json").string(),
                                                   " does not name it; add it there (null if there is none)"));
  }
  return absl::OkStatus();
}

// A message without the keys whose value is null, and with its reasoning under both names that templates read.
Value NormalMessage(const Dict& message) {
  auto normal = std::make_shared<Dict>();
  const Value* reasoning = nullptr;
  for (const absl::string_view field : kReasoningFields) {
    const Value* value = message.Find(field);
    if (reasoning == nullptr && value != nullptr && !value->is(Kind::kNone)) reasoning = value;
  }
  if (reasoning != nullptr) normal->Set(Value::Text("thinking"), *reasoning);
  for (const auto& [key, value] : message.pairs) {
    if (!value.is(Kind::kNone)) normal->Set(key, value);
  }
  if (reasoning != nullptr) normal->Set(Value::Text("reasoning_content"), *reasoning);
  return Value::Of(std::shared_ptr<const Dict>(std::move(normal)));
}

}  // namespace

absl::StatusOr<Conversation> ReadConversation(const Json& messages, const Json* tools) {
  if (!messages.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat("is not a list of messages but of type ", messages.type_name()));
  }
  if (messages.empty()) return absl::InvalidArgumentError("is a list without messages");
  Conversation conversation;
  for (const Json& message : messages) {
    const std::string place = absl::StrCat("message ", conversation.messages.size());
    if (!message.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, " is not an object with a role but of type ", message.type_name()));
    }
    if (!message.contains("role") || !message["role"].is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(place, " has no 'role', or one that is not text"));
    }
    ASSIGN_OR_RETURN(const Value value, templates::FromJson(message), << place);
    conversation.messages.push_back(NormalMessage(value.dict()));
  }
  if (tools != nullptr && !tools->is_null()) {
    const bool is_list = tools->is_array() &&
                         std::all_of(tools->begin(), tools->end(), [](const Json& tool) { return tool.is_object(); });
    if (!is_list) return absl::InvalidArgumentError("its tools are not a list of objects");
    ASSIGN_OR_RETURN(conversation.tools, templates::FromJson(*tools));
  }
  return conversation;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Open(const std::string& tokenizer,
                                                                 const std::string& replacement) {
  std::error_code ignored;
  const fs::path path = tokenizer;
  const fs::path folder = fs::is_directory(path, ignored) ? path : path.parent_path();
  ASSIGN_OR_RETURN(const Json config, ReadConfig(folder / "tokenizer_config.json"));
  Source source{.name = "train.data.chat_template", .text = replacement};
  if (replacement.empty()) {
    ASSIGN_OR_RETURN(source, ReadSource(folder, config));
  }
  if (utf8::ValidPrefix(source.text) != source.text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(source.name, " is not UTF-8"));
  }
  absl::StatusOr<templates::ParsedTemplate> parsed = templates::ParseTemplate(source.text);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source.name, ": ", parsed.status().message()));
  }
  std::unique_ptr<ChatTemplate> chat(new ChatTemplate);
  chat->parsed_ = *std::move(parsed);
  chat->name_ = source.name;
  chat->has_tool_template_ = source.has_tool_template;
  RETURN_IF_ERROR(AddSpecialTokens(folder, config, chat->parsed_, chat->context_));
  Json known = {{"template", source.text}};
  for (const auto& [name, value] : chat->context_) known[name] = value.text();
  chat->identity_ = HashHex(known.dump(-1, ' ', false, Json::error_handler_t::replace));
  return chat;
}

absl::StatusOr<templates::Rendered> ChatTemplate::Render(const Conversation& conversation, size_t count,
                                                         bool prompts) const {
  if (has_tool_template_ && !conversation.tools.is(Kind::kNone)) {
    return absl::InvalidArgumentError(
        "the conversation has tools, for which the tokenizer has a separate template, 'tool_use', that is not used "
        "here; write that template to chat_template.jinja in a folder with nothing but the files of the tokenizer");
  }
  templates::Context context = context_;
  context.emplace_back("messages", Value::List({conversation.messages.begin(),
                                                conversation.messages.begin() + static_cast<ptrdiff_t>(count)}));
  context.emplace_back("tools", conversation.tools);
  context.emplace_back("documents", Value::None());
  context.emplace_back("add_generation_prompt", Value::Bool(prompts));
  absl::StatusOr<templates::Rendered> rendered = templates::RenderTemplate(parsed_, context);
  if (rendered.ok()) return rendered;
  return absl::Status(rendered.status().code(), absl::StrCat(name_, ": ", rendered.status().message()));
}

}  // namespace trainyard
