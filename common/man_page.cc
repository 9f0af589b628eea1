#include "common/man_page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/version.h"

namespace trainyard {
namespace {

// Escapes text so that roff shows it unchanged: users copy commands and options from the page to a terminal.
std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}, {"`", "\\(ga"}, {"^", "\\(ha"}, {"~", "\\(ti"}});
}

// Escapes running text. Without "\&", roff would read a line that begins with a period as a request.
std::string Lines(absl::string_view text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    lines.push_back(absl::StrCat(absl::StartsWith(line, ".") ? "\\&" : "", Escaped(line)));
  }
  return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
}

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Escaped(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Escaped(text), "\\fR"); }

std::string Section(absl::string_view title, absl::string_view text) {
  return text.empty() ? "" : absl::StrCat(".SH ", title, "\n", text);
}

// "-f, --file FILE", with the names in bold and the value in italic.
std::string OptionTerm(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back(Bold(absl::StrCat("-", name)));
  for (const std::string& name : option.get_lnames()) names.push_back(Bold(absl::StrCat("--", name)));
  const bool takes_value = option.get_items_expected_max() > 0;
  return absl::StrCat(absl::StrJoin(names, ", "), takes_value ? absl::StrCat(" ", Italic(option.get_type_name())) : "");
}

std::string OptionText(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!option.get_default_str().empty()) absl::StrAppend(&text, " (default ", option.get_default_str(), ")");
  return Lines(text);
}

std::string Terms(const CLI::App& app, bool positional) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty() || option->get_positional() != positional) continue;  // hidden, or the other kind
    std::string term = positional ? Italic(option->get_name(true)) : OptionTerm(*option);
    // This argument may also be given as an option.
    if (positional && !option->get_lnames().empty()) absl::StrAppend(&term, ", ", OptionTerm(*option));
    absl::StrAppend(&text, ".TP\n", term, "\n", OptionText(*option));
  }
  return text;
}

std::string Synopsis(const CLI::App& app, const std::string& command) {
  std::string text = absl::StrCat(Bold(command), " [", Italic("OPTIONS"), "]");
  if (!app.get_subcommands({}).empty()) absl::StrAppend(&text, " ", Italic("VERB"));
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty() || !option->get_positional()) continue;
    const std::string name = Italic(option->get_name(true));
    absl::StrAppend(&text, option->get_required() ? " " : " [", name, option->get_required() ? "" : "]",
                    option->get_items_expected_max() > 1 ? " ..." : "");
  }
  return absl::StrCat(text, "\n");
}

std::string Verbs(const CLI::App& app, const std::string& name) {
  std::string text;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_group().empty()) continue;
    const std::string page = absl::StrCat(name, "-", verb->get_name());
    std::string names = Bold(verb->get_name());
    for (const std::string& alias : verb->get_aliases()) absl::StrAppend(&names, ", ", Bold(alias));
    absl::StrAppend(&text, ".TP\n", names, "\n", Lines(absl::StrCat(verb->get_description(), ": see ", page, "(1)")));
  }
  return text;
}

std::string Environment(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty() || option->get_group().empty()) continue;
    absl::StrAppend(&text, ".TP\n", Bold(option->get_envname()), "\n",
                    Lines(absl::StrCat("The value of ", option->get_name(), " if that option is not given.")));
  }
  return text;
}

// The text that --help shows below the options, with its line breaks. The text after "Examples:" is a separate section.
std::string Footer(const CLI::App& app) {
  const std::vector<std::string> parts = absl::StrSplit(app.get_footer(), absl::MaxSplits("Examples:\n", 1));
  const auto unfilled = [](absl::string_view text) {
    text = absl::StripAsciiWhitespace(text);
    return text.empty() ? "" : absl::StrCat(".nf\n", Lines(text), ".fi\n");
  };
  return absl::StrCat(Section("NOTES", unfilled(parts[0])),
                      Section("EXAMPLES", unfilled(parts.size() > 1 ? parts[1] : "")));
}

void AddPages(const CLI::App& app, ManPageOptions options, std::vector<NamedText>* pages) {
  pages->push_back({absl::StrCat(options.name, ".", options.section), ManPage(app, options)});
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_group().empty()) continue;
    AddPages(*verb,
             {.name = absl::StrCat(options.name, "-", verb->get_name()),
              .command = absl::StrCat(options.command.empty() ? options.name : options.command, " ", verb->get_name()),
              .section = options.section,
              .see_also = {{options.name, options.section}}},
             pages);
  }
}

}  // namespace

std::string ManPage(const CLI::App& app, const ManPageOptions& options) {
  const std::string& command = options.command.empty() ? options.name : options.command;
  std::vector<std::string> see_also;
  for (const auto& [name, section] : options.see_also) {
    see_also.push_back(absl::StrCat(Bold(name), "(", section, ")"));
  }
  const std::string description = absl::StrCat(absl::StripSuffix(app.get_description(), "."), ".");
  return absl::StrCat(".\\\" Made from the command line of ", Escaped(command), "; do not edit.\n.TH \"",
                      Escaped(absl::AsciiStrToUpper(options.name)), "\" ", options.section, " \"\" \"Trainyard ",
                      kVersion, "\" \"Trainyard\"\n",
                      Section("NAME", absl::StrCat(Escaped(options.name), " \\- ",
                                                   Lines(absl::StripSuffix(app.get_description(), ".")))),
                      Section("SYNOPSIS", Synopsis(app, command)), Section("DESCRIPTION", Lines(description)),
                      Section("VERBS", Verbs(app, options.name)), Section("ARGUMENTS", Terms(app, true)),
                      Section("OPTIONS", Terms(app, false)), Section("ENVIRONMENT", Environment(app)), Footer(app),
                      Section("SEE ALSO", see_also.empty() ? "" : absl::StrCat(absl::StrJoin(see_also, ", "), "\n")));
}

std::vector<NamedText> ManPagesOf(const CLI::App& app, const ManPageOptions& options) {
  std::vector<NamedText> pages;
  AddPages(app, options, &pages);
  return pages;
}

}  // namespace trainyard
