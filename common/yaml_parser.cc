#include "common/yaml_parser.h"

#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/yaml_scanner.h"

namespace trainyard::yaml {
namespace {

constexpr int kDepthMax = 64;
constexpr size_t kKeyBytesMax = 1'000;  // PyYAML searches only this far for the colon of a key
constexpr char kTextAfterEnd[] =
    "there is text after the end of the document, or a second document; a file contains one document";

// A recursive descent parser. A method that finds a problem returns null or false, and its callers do the same.
class Parser {
 public:
  Parser(absl::string_view text, ParseError* error) : s_(text, error) {}

  NodePtr Document() {
    if (!s_.CheckCharacters() || !s_.SkipBlanks()) return nullptr;
    if (s_.Peek() == '%' && s_.Indent() == 0) return s_.Refuse("directives (%) are not supported; remove the line");
    if (s_.AtMarker("...")) return s_.Refuse(kTextAfterEnd);
    if (s_.AtMarker("---")) {
      s_.Skip(3);
      if (!s_.EndOfLine("---") || !s_.SkipBlanks()) return nullptr;
    }
    NodePtr root = s_.AtEnd() || s_.AtMarker() ? s_.NewNode(Node::Kind::kNothing) : BlockNode();
    if (root == nullptr || !s_.SkipBlanks()) return nullptr;
    if (s_.AtMarker("...")) {
      s_.Skip(3);
      if (!s_.EndOfLine("...") || !s_.SkipBlanks()) return nullptr;
      if (!s_.AtEnd()) return s_.Refuse(kTextAfterEnd);
    }
    if (s_.AtMarker()) return s_.Refuse(kTextAfterEnd);
    if (!s_.AtEnd()) {
      return s_.Refuse(absl::StrCat("expected the end of the file, found ", s_.FoundText(),
                                    ", which does not belong to the text before it; check the indentation"));
    }
    return root;
  }

 private:
  // ---- block style: by indentation ----------------------------------------------------------------------------------

  // A map, a list or a value that begins here, at the first character of a line or after a dash.
  NodePtr BlockNode() {
    if (!EnterLevel()) return nullptr;
    NodePtr node;
    if (s_.AtDash()) {
      node = BlockList();
    } else if (AtKey()) {
      node = BlockMap();
    } else if (!s_.failed()) {
      node = LineNode();
    }
    --depth_;
    return node;
  }

  bool EnterLevel() {
    if (depth_ == kDepthMax) {
      return s_.Refuse(absl::StrCat("this is nested more than ", kDepthMax, " levels deep")) != nullptr;
    }
    ++depth_;
    return true;
  }

  // Whether a key begins here. Does not move the position.
  bool AtKey() {
    const size_t begin = s_.position();
    const bool may_be_key = s_.Peek() == '"' || s_.Peek() == '\'' || s_.BeginsPlain();
    bool is_key = may_be_key && s_.Scalar(/*in_flow=*/false) != nullptr;
    if (is_key) {
      s_.SkipSpaces();
      is_key = s_.AtColon() && s_.position() - begin <= kKeyBytesMax;
    }
    s_.ReturnTo(begin);
    return is_key;
  }

  NodePtr BlockMap() {
    const size_t indent = s_.Indent();
    std::shared_ptr<Node> map = s_.NewNode(Node::Kind::kMap);
    while (true) {
      if (!AtKey()) return s_.failed() ? nullptr : RefuseKey();
      NodePtr key = s_.Scalar(/*in_flow=*/false);
      s_.SkipSpaces();
      s_.Skip();  // the colon
      NodePtr value = Value(indent, /*in_map=*/true);
      if (value == nullptr || !s_.SkipBlanks()) return nullptr;
      map->entries.emplace_back(std::move(key), std::move(value));
      if (s_.AtEnd() || s_.AtMarker() || s_.Indent() < indent) return map;
      if (s_.Indent() > indent) return RefuseIndentation(indent);
    }
  }

  NodePtr BlockList() {
    const size_t indent = s_.Indent();
    std::shared_ptr<Node> list = s_.NewNode(Node::Kind::kList);
    while (true) {
      s_.Skip();  // the dash
      NodePtr item = Value(indent, /*in_map=*/false);
      if (item == nullptr || !s_.SkipBlanks()) return nullptr;
      list->items.push_back(std::move(item));
      if (s_.AtEnd() || s_.AtMarker() || s_.Indent() < indent) return list;
      if (s_.Indent() > indent) return RefuseIndentation(indent);
      if (!s_.AtDash()) return list;  // the list has the indentation of its key, and the next key follows
    }
  }

  // Parses the value after the colon or dash of a map or list indented by `indent`, on the same line or below.
  NodePtr Value(size_t indent, bool in_map) {
    s_.SkipSpaces();
    if (Scanner::IsBreak(s_.Peek()) || s_.AtComment()) {
      NodePtr nothing = s_.NewNode(Node::Kind::kNothing);
      if (!s_.SkipBlanks()) return nullptr;
      if (s_.AtEnd() || s_.AtMarker()) return nothing;
      const bool list_of_key = in_map && s_.Indent() == indent && s_.AtDash();
      return s_.Indent() > indent || list_of_key ? BlockNode() : nothing;
    }
    if (s_.Peek() == '&') {
      return AnchoredNode([&] { return Scanner::IsBreak(s_.Peek()) ? Value(indent, in_map) : LineNode(); });
    }
    if (!in_map) return BlockNode();
    if (s_.AtDash()) return s_.Refuse("a list must begin on the line below its key");
    return LineNode();
  }

  // A value on one line, or in brackets, with nothing after it.
  NodePtr LineNode() {
    const Place place = s_.Here();
    NodePtr node = FlowNode(/*in_flow=*/false);
    if (node == nullptr) return nullptr;
    if (!node->IsScalar()) {
      s_.SkipSpaces();
      if (s_.AtColon()) return s_.RefuseAt(place, "expected a key, found a list or map in its place");
    }
    return s_.EndOfLine("the value") ? node : nullptr;
  }

  // ---- flow style: in brackets --------------------------------------------------------------------------------------

  NodePtr FlowNode(bool in_flow) {
    switch (s_.Peek()) {
      case '[':
      case '{':
        return Brackets();
      case '*':
        return Alias();
      case '&':
        if (in_flow) return AnchoredNode([&] { return FlowNode(true); });
        return s_.Refuse("an anchor (&name) must be between a key and its value");
      case '|':
      case '>':
        return s_.Refuse("values over several lines (| and >) are not supported; write the value on one line");
      case '!':
        return s_.Refuse("tags (!) are not supported; put the value in quotes if it is a string");
      default:
        return s_.Scalar(in_flow);
    }
  }

  NodePtr Brackets() {
    if (!EnterLevel()) return nullptr;
    const Bracket open{.place = s_.Here(), .is_map = s_.Peek() == '{'};
    std::shared_ptr<Node> node = s_.NewNode(open.is_map ? Node::Kind::kMap : Node::Kind::kList);
    s_.Skip();
    while (true) {
      if (!SkipIn(open)) return nullptr;
      if (s_.Peek() == open.close()) break;
      if (open.is_map ? !Entry(open, node.get()) : !Item(node.get())) return nullptr;
      if (!SkipIn(open)) return nullptr;
      if (s_.Peek() == open.close()) break;
      if (s_.Peek() != ',') {
        return s_.Refuse(absl::StrCat("expected ',' or '", std::string(1, open.close()), "' in the ", open.What(),
                                      " of line ", open.place.line, ", found ", s_.FoundText()));
      }
      s_.Skip();
    }
    s_.Skip();
    --depth_;
    return node;
  }

  struct Bracket {
    Place place;
    bool is_map = false;
    char close() const { return is_map ? '}' : ']'; }
    const char* What() const { return is_map ? "map" : "list"; }
  };

  bool Item(Node* list) {
    NodePtr item = FlowNode(/*in_flow=*/true);
    if (item != nullptr) list->items.push_back(item);
    return item != nullptr;
  }

  bool Entry(const Bracket& open, Node* map) {
    const size_t begin = s_.position();
    std::shared_ptr<Node> key = s_.Scalar(/*in_flow=*/true);
    if (key == nullptr) return false;
    s_.SkipSpaces();
    const bool colon = s_.Peek() == ':' && (key->quoted || Scanner::IsBlank(s_.Peek(1)) || Scanner::IsFlow(s_.Peek(1)));
    if (!colon || s_.position() - begin > kKeyBytesMax) {
      return s_.Refuse(absl::StrCat("expected ': ' after the key '", key->text.substr(0, 60), "'")) != nullptr;
    }
    s_.Skip();
    if (!SkipIn(open)) return false;
    const bool is_empty = s_.Peek() == ',' || s_.Peek() == '}';
    NodePtr value = is_empty ? s_.NewNode(Node::Kind::kNothing) : FlowNode(/*in_flow=*/true);
    if (value == nullptr) return false;
    map->entries.emplace_back(std::move(key), std::move(value));
    return true;
  }

  bool SkipIn(const Bracket& open) {
    if (!s_.SkipBlanks()) return false;
    if (!s_.AtEnd() && !s_.AtMarker()) return true;
    return s_.RefuseAt(open.place, absl::StrCat("the ", open.What(), " that opens here is not closed by '",
                                                std::string(1, open.close()), "'")) != nullptr;
  }

  // ---- anchors ------------------------------------------------------------------------------------------------------

  template <typename ReadNode>
  NodePtr AnchoredNode(ReadNode read) {
    const Place place = s_.Here();
    const std::string name = s_.Name();
    if (name.empty() || !Scanner::IsBlank(s_.Peek()))
      return s_.RefuseAt(place, "expected a name and a space after '&'");
    s_.SkipSpaces();
    if (s_.Peek() == '&' || s_.Peek() == '*' || s_.AtComment()) {
      return s_.Refuse(
          absl::StrCat("expected the value that '&", name.substr(0, 60), "' names, found ", s_.FoundText()));
    }
    NodePtr node = read();
    if (node == nullptr) return nullptr;
    if (anchors_.emplace(name, node).second) return node;
    return s_.RefuseAt(place, absl::StrCat("'&", name.substr(0, 60), "' is already the name of another value"));
  }

  NodePtr Alias() {
    const Place place = s_.Here();
    const std::string name = s_.Name();
    auto found = anchors_.find(name);
    if (found != anchors_.end() && (Scanner::IsBlank(s_.Peek()) || Scanner::IsFlow(s_.Peek()))) return found->second;
    return s_.RefuseAt(place, absl::StrCat("'*", name.substr(0, 60), "' names no value above; put it in ",
                                           "quotes if it is a string"));
  }

  // ---- messages -----------------------------------------------------------------------------------------------------

  NodePtr RefuseIndentation(size_t indent) {
    return s_.Refuse(absl::StrCat("the line is indented by ", s_.Indent(), " spaces, where ", indent,
                                  " are expected; a value cannot continue on the next line"));
  }

  NodePtr RefuseKey() {
    if (s_.Peek() == '?' && Scanner::IsBlank(s_.Peek(1))) {
      return s_.Refuse("keys that begin with '? ' are not supported; write `key: value`");
    }
    return s_.Refuse(absl::StrCat("expected `key: value`, found ", s_.FoundText()));
  }

  Scanner s_;
  int depth_ = 0;
  std::map<std::string, NodePtr> anchors_;
};

}  // namespace

bool Node::IsNothing() const {
  if (kind == Kind::kNothing) return true;
  if (kind != Kind::kScalar || quoted) return false;
  return text == "~" || text == "null" || text == "Null" || text == "NULL";
}

NodePtr Parse(absl::string_view text, ParseError* error) {
  *error = ParseError();
  return Parser(text, error).Document();
}

}  // namespace trainyard::yaml
