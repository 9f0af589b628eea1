// Reads YAML strictly into a protobuf message, according to the descriptor of the message and the rules of its fields
// (proto/trainyard/v1/options.proto). Job files and the configuration files of the daemons share this reader, and the
// schema is the only place that defines ranges and defaults.
//
// Keys are field names, enum values are names, a list of scalars is a list. A nested message is a map. If its rule has
// a shorthand_key, a single name is accepted too, and becomes the value of that key. A whole number may be written true
// or false if its rule defines what these mean. All problems are collected: unknown keys (with the nearest valid one),
// duplicate keys, wrong types, values out of range, unknown enum names. Anchors and aliases are allowed. Merge keys
// (`<<`), values over several lines, several documents in a file and files above 1 MiB are not (see yaml_parser.h).
//
//   WorkerConfig config;
//   RETURN_IF_ERROR(ReadYamlFile(path, &config));   // flags override the file: set them on `config` here
//   ApplyDefaults(&config);
//
// Functions keep no state and are thread-safe. A repeated message is a list of maps, which only ReadYaml, CheckRules,
// DropInvalid and ApplyDefaults support. Protobuf's maps are not supported.
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
  std::string file_name;          // used in problems
  std::string working_directory;  // relative paths are resolved against it; empty: they stay as they are
};

// Merges the values of `source` into `out`. A scalar with a problem does not change its field; a list that contains
// invalid elements sets the valid ones. If `positions` is given, it receives the position of every known key, including
// those with a problem. CheckRules finds missing keys; this function does not.
void ReadYaml(const YamlSource& source, google::protobuf::Message* out, Problems* problems,
              Positions* positions = nullptr);

// Sets the field at a dotted path ("train.steps") from a YAML value, as `--set` does. A scalar or list replaces the
// field, `auto` clears it, and a map replaces only the keys that it contains; no value (null) is a problem.
// `source.text` is the value; problems name `source.file_name`.
void SetYamlKey(absl::string_view path, const YamlSource& source, google::protobuf::Message* out, Problems* problems,
                Positions* positions = nullptr);

// Checks a message from any source: required fields, ranges, finite numbers, known enum values, list lengths, texts
// (UTF-8, no control characters) and absolute paths. An unset field whose key is in `positions` was rejected before and
// is not reported again.
void CheckRules(const google::protobuf::Message& message, const Positions& positions, Problems* problems);

// As CheckRules, but also clears every field that it rejects and adds the key of the field to `positions`. Later checks
// then see no invalid values, and can distinguish a rejected key from a missing one.
void DropInvalid(google::protobuf::Message* message, Positions* positions, Problems* problems);

// Sets every unset field to the default of its rule, also in nested messages, which are created. Fields with the rule
// `auto` and no default stay unset.
void ApplyDefaults(google::protobuf::Message* message);

// Reads a whole file. Relative paths in it are resolved against the working directory.
// Possible errors: NotFound, PermissionDenied: the file cannot be read. InvalidArgument: all problems, one per line.
absl::Status ReadYamlFile(const std::string& path, google::protobuf::Message* out);

// The fields that are set, in block style, with lists of scalars on one line. Maps without keys are left out; apart
// from those, reading the text gives an equal message.
std::string WriteYaml(const google::protobuf::Message& message);

// The value of one field as YAML; "auto" for an unset field whose rule allows it. REQUIRES: not a message field.
std::string FieldYaml(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);

// The name of an enum value in YAML: from its rule, else the proto name in lower case without the enum's prefix.
std::string EnumName(const google::protobuf::EnumValueDescriptor& value);

}  // namespace trainyard
