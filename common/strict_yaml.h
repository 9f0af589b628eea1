// Reads YAML strictly into a protobuf message, guided by the message's descriptor and the rules its fields carry
// (proto/trainyard/v1/options.proto), so that job files and the daemons' configuration files are read by one piece of
// code and the schema is the only place where a range or a default stands.
//
// Keys are field names, enum values their words, a list of scalars a list; a nested message is a map, or where its rule
// has a word_key, a word too; a whole number may be true or false where its rule says what these are. All problems are
// collected: unknown keys (with the nearest valid one), duplicate keys, wrong types, values out of range, words no enum
// has. Anchors and aliases may be used; merge keys (`<<`), values over several lines, several documents in a file and
// files above 1 MiB may not (see yaml_parser.h).
//
//   WorkerConfig config;
//   RETURN_IF_ERROR(ReadYamlFile(path, &config));   // flags win: set them on `config` here
//   ApplyDefaults(&config);
//
// Functions keep no state and are thread-safe. Messages with repeated messages or maps are outside of what this reads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/problems.h"
#include "google/protobuf/message.h"

namespace trainyard {

inline constexpr size_t kYamlBytesMax = 1 << 20;

struct YamlSource {
  absl::string_view text;
  std::string file_name;          // as problems name it
  std::string working_directory;  // relative paths are resolved against it; empty: they stay as they are
};

// Merges what `source` gives into `out`; a key with a problem leaves its field unset. `positions`, where given,
// receives the place of every known key, also of those with a problem. What is missing is not looked at: see
// CheckRules.
void ReadYaml(const YamlSource& source, google::protobuf::Message* out, Problems* problems,
              Positions* positions = nullptr);

// Sets the field at a dotted path ("train.steps") from a value in YAML, as `--set` does. A scalar or list replaces what
// is there, `auto` clears it, and of a map the keys given win. `source.text` is the value; problems name
// `source.file_name`.
void SetYamlKey(absl::string_view path, const YamlSource& source, google::protobuf::Message* out, Problems* problems,
                Positions* positions = nullptr);

// Required fields, ranges, finite numbers, known enum values, list lengths, texts (UTF-8, no control characters) and
// absolute paths of a message, wherever it came from. A field that is unset although `positions` knows its key was
// refused before and is not told twice.
void CheckRules(const google::protobuf::Message& message, const Positions& positions, Problems* problems);

// The same, and unsets every field that it refuses, with its key added to `positions`: rules that follow meet no value
// out of range, and can tell a refused key from one that was not given.
void DropRefused(google::protobuf::Message* message, Positions* positions, Problems* problems);

// Gives every field that is not set the default of its rule, in nested messages too (which are created). Fields with
// the rule `auto` and no default stay unset.
void ApplyDefaults(google::protobuf::Message* message);

// Reads a whole file; relative paths in it are resolved against the working directory.
// Possible errors: NotFound, PermissionDenied: the file cannot be read. InvalidArgument: every problem, one a line.
absl::Status ReadYamlFile(const std::string& path, google::protobuf::Message* out);

// The set fields in block style, lists of scalars on one line, maps without keys left out; reading it back gives an
// equal message but for those.
std::string WriteYaml(const google::protobuf::Message& message);

// One field's value as YAML; "auto" for an unset field whose rule has it. REQUIRES: no message field.
std::string FieldYaml(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);

// How an enum value is written: its rule's word, else its name in lower case without the enum's prefix.
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);

// The candidate with the fewest edits (insert, delete, replace, swap of neighbours) from `word`, if near enough to be
// meant; else empty.
std::string NearestName(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace trainyard
