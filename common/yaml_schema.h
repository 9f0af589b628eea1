// What the descriptor of a message defines about YAML: keys, names, rules, and error messages about them. Shared by the
// reader, the rules and the writer behind strict_yaml.h. Other code includes strict_yaml.h instead. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "trainyard/v1/options.pb.h"

namespace trainyard::yaml {

const v1::FieldRule& RuleOf(const google::protobuf::FieldDescriptor& field);

// The key of a field in YAML: from its rule, else its name.
const std::string& KeyOf(const google::protobuf::FieldDescriptor& field);
// The field with this key, or null.
const google::protobuf::FieldDescriptor* FieldOfKey(const google::protobuf::Descriptor& message, absl::string_view key);

std::string JoinKeys(absl::string_view parent, absl::string_view key);
// The path of an element of a list of maps: "namespaces[0]".
std::string ElementPath(absl::string_view list, int index);
std::vector<std::string> KeysOf(const google::protobuf::Descriptor& message);
// The names of an enum, without the unspecified one.
std::vector<std::string> EnumNames(const google::protobuf::EnumDescriptor& type);

// "a map with the keys mode, every".
std::string MapText(const google::protobuf::Descriptor& type);
// "a whole number from 1 to 1024", "true or false", "one of cosine, linear, constant".
std::string Expectation(const google::protobuf::FieldDescriptor& field);
// "must be from 1 to 1024"; empty if the rule has no range.
std::string RangeSentence(const google::protobuf::FieldDescriptor& field);
// Whether the rule allows `value`: it is in the range, or it is the number that `true` or `false` means. False for
// infinity and NaN.
bool InRange(const google::protobuf::FieldDescriptor& field, double value);
// Why a string field cannot have this value, which may come from YAML or from the API. Empty if it can.
std::string TextProblem(const google::protobuf::FieldDescriptor& field, absl::string_view text);
// The dotted names of the fields at a dotted path of keys: "train.batch.global_size" for "train.batch.global".
std::string FieldPathOf(const google::protobuf::Descriptor& message, absl::string_view keys);
// Whether the field has the value that ApplyDefaults would give it.
bool HasDefaultValue(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);
// "; did you mean 'steps'? Valid here: ..." for a key that `message` does not have; `lists_keys` false: without the
// valid keys. Also searches the rest of the schema for the same key.
std::string UnknownKeyHelp(absl::string_view key, const google::protobuf::Descriptor& message,
                           const google::protobuf::Descriptor& root, bool lists_keys);

// A number in its shortest notation: 0.1, 3e-04 for 0.0003, whole numbers without a point.
std::string NumberText(double value);

// One scalar of a YAML file.
struct Scalar {
  std::string text;
  bool quoted = false;
  std::string working_directory;  // see YamlSource
};

bool IsNumber(absl::string_view text);

// Sets `field`, or adds to it if it is repeated. Returns what is wrong with the scalar, or an empty text.
std::string SetScalar(const Scalar& scalar, const google::protobuf::FieldDescriptor& field,
                      google::protobuf::Message* message);

}  // namespace trainyard::yaml
