#include "client/completion.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace trainyard::client {
namespace {

struct Flag {
  std::string name;  // "--json", "-f"
  std::string help;
  bool takes_value;
};

// A verb, and the verbs and flags that may follow it.
struct Verb {
  std::string path;  // "checkpoint ls"; empty: trainctl itself
  std::string help;
  std::vector<std::string> aliases = {};
  std::vector<Verb> verbs = {};
  std::vector<Flag> flags = {};

  std::string name() const { return path.substr(path.rfind(' ') + 1); }
};

Verb VerbOf(const CLI::App& app, const std::string& path) {
  Verb verb{.path = path, .help = app.get_description(), .aliases = app.get_aliases()};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    const bool takes_value = option->get_items_expected_max() > 0;
    for (const std::string& name : option->get_lnames()) {
      verb.flags.push_back({"--" + name, option->get_description(), takes_value});
    }
    for (const std::string& name : option->get_snames()) {
      verb.flags.push_back({"-" + name, option->get_description(), takes_value});
    }
  }
  for (const CLI::App* child : app.get_subcommands({})) {
    verb.verbs.push_back(VerbOf(*child, absl::StrCat(path, path.empty() ? "" : " ", child->get_name())));
  }
  return verb;
}

// The verbs and flags that may follow `verb`, separated by blanks.
std::string ChoicesAfter(const Verb& verb) {
  std::vector<std::string> choices;
  for (const Verb& child : verb.verbs) choices.push_back(child.name());
  for (const Flag& flag : verb.flags) choices.push_back(flag.name);
  return absl::StrJoin(choices, " ");
}

// Puts `text` into single quotes for a shell.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// The verbs that have verbs of their own, as alternatives of a `case`.
std::string Parents(const Verb& root) {
  std::vector<std::string> names;
  for (const Verb& verb : root.verbs) {
    if (!verb.verbs.empty()) names.push_back(verb.name());
  }
  return absl::StrJoin(names, "|");
}

// trainctl's global options that take a value, as alternatives of a `case`.
std::string ValueOptions(const Verb& root) {
  std::vector<std::string> names;
  for (const Flag& flag : root.flags) {
    if (flag.takes_value) names.push_back(flag.name);
  }
  return absl::StrJoin(names, "|");
}

void AppendCases(const Verb& verb, std::string* text) {
  std::string names = Quoted(verb.path);
  for (const std::string& alias : verb.aliases) absl::StrAppend(&names, "|", Quoted(alias));
  absl::StrAppend(text, "    ", names, ") choices=", Quoted(ChoicesAfter(verb)), " ;;\n");
  for (const Verb& child : verb.verbs) AppendCases(child, text);
}

// The common part of the bash and zsh scripts: sets the shell variable `verbs` to the verbs that precede the cursor and
// `choices` to what may follow them. `before` is the shell's expression for the words before the cursor.
std::string FindChoices(const Verb& root, const std::string& before) {
  std::string text = absl::StrCat("  local word skip='' verbs='' choices=''\n  for word in ", before, R"(; do
    if [[ -n $skip ]]; then skip=''; continue; fi
    case "$word" in
      )",
                                  ValueOptions(root), R"() skip=1 ;;
      [a-z]*) case "$verbs" in
           '') verbs=$word ;;
           )",
                                  Parents(root), R"() verbs="$verbs $word" ;;
         esac ;;
    esac
  done
  case "$verbs" in
)");
  AppendCases(root, &text);
  return absl::StrCat(text, "  esac\n");
}

// Completes file names where no verb is expected: for values of options, job files and folders.
std::string BashScript(const Verb& root) {
  return absl::StrCat(
      "# bash completion of trainctl. Load it with: source <(trainctl completion bash)\n_trainctl() {\n",
      FindChoices(root, "\"${COMP_WORDS[@]:1:COMP_CWORD-1}\""), R"(  COMPREPLY=()
  local current=${COMP_WORDS[COMP_CWORD]}
  case "$verbs" in
    ''|)",
      Parents(root), R"() ;;
    *) [[ $current == -* ]] || return 0 ;;
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$current"))
}
complete -o default -F _trainctl trainctl
)");
}

std::string ZshScript(const Verb& root) {
  return absl::StrCat(
      "#compdef trainctl\n# zsh completion of trainctl. Load it with: source <(trainctl completion zsh)\n"
      "_trainctl() {\n",
      "  local current=${words[CURRENT]}\n  local -a before=(\"${(@)words[2,CURRENT-1]}\")\n",
      FindChoices(root, "\"${before[@]}\""), R"(  case "$verbs" in
    ''|)",
      Parents(root), R"() ;;
    *) [[ $current == -* ]] || { _files; return; } ;;
  esac
  compadd -- ${=choices}
}
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then _trainctl "$@"; else compdef _trainctl trainctl; fi
)");
}

void AppendFish(const Verb& verb, const std::string& condition, std::string* text) {
  const std::string start = absl::StrCat("complete -c trainctl -n ", Quoted(condition));
  for (const Verb& child : verb.verbs) {
    absl::StrAppend(text, start, " -f -a ", child.name(), " -d ", Quoted(child.help), "\n");
  }
  for (const Flag& flag : verb.flags) {
    const bool is_long = flag.name[1] == '-';
    absl::StrAppend(text, start, is_long ? " -l " : " -s ", flag.name.substr(is_long ? 2 : 1), " -d ",
                    Quoted(flag.help), "\n");
  }
}

std::string FishScript(const Verb& root) {
  std::string text = "# fish completion of trainctl. Load it with: trainctl completion fish | source\n";
  AppendFish(root, "__fish_use_subcommand", &text);
  for (const Verb& verb : root.verbs) {
    std::string condition = absl::StrCat("__fish_seen_subcommand_from ", verb.name());
    std::vector<std::string> names;
    for (const Verb& child : verb.verbs) {
      names.push_back(child.name());
      AppendFish(child, absl::StrCat(condition, "; and __fish_seen_subcommand_from ", child.name()), &text);
    }
    if (!names.empty()) {
      absl::StrAppend(&condition, "; and not __fish_seen_subcommand_from ", absl::StrJoin(names, " "));
    }
    AppendFish(verb, condition, &text);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell) {
  const Verb root = VerbOf(app, "");
  if (shell == "bash") return BashScript(root);
  if (shell == "zsh") return ZshScript(root);
  if (shell == "fish") return FishScript(root);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no completion for '", shell, "': expected bash, zsh or fish"));
}

}  // namespace trainyard::client
