// Manual pages in the format of man(7), made from a declared command line, as --help and the completion scripts are, so
// the pages cannot differ from the program. Pure; the text does not depend on the machine that makes it.
//
//   std::string text = ManPage(app, {.name = "trainyard-worker", .section = 8, .see_also = {{"trainctl", 1}}});
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <utility>
#include <vector>

namespace trainyard {

struct ManPageOptions {
  std::string name;          // of the page: "trainctl-checkpoint-ls"
  std::string command = {};  // "trainctl checkpoint ls"; empty: `name`
  int section = 1;
  std::vector<std::pair<std::string, int>> see_also = {};  // name and section
};

std::string ManPage(const CLI::App& app, const ManPageOptions& options);

struct NamedText {
  std::string name;  // of a file: "trainctl-run.1"
  std::string text;
};

// The page of a program and one page for each verb, including verbs of verbs. Each page refers to the pages of its own
// verbs and to the page that lists it.
std::vector<NamedText> ManPagesOf(const CLI::App& app, const ManPageOptions& options);

}  // namespace trainyard
