// Collects what the keys of a foreign file become: the values of a job's keys, each with the key that it comes from,
// and what has no effect or is refused. It is called by the translators of groups of keys (translators.h), and these
// are called by import.cc.
//
// Values given with --set replace those of the file, and notes name the values that they replace. Two keys of the file
// that set the same key of the job must agree. Not thread-safe; no effects outside of the object.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/problems.h"
#include "foreign/document.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::foreign {

// A key of the job with its value in YAML.
struct Setting {
  std::string key;
  std::string value;
};

// What became of one key of the file.
struct KeyOutcome {
  std::string key;    // as in the file
  std::string value;  // for people
  Position position = {};
  Effect effect = Effect::kNone;
  std::vector<Setting> settings = {};  // what the key sets; empty if it sets nothing in this file
  std::string note;
  bool is_settled = false;  // a translator has decided about it
};

class Translation {
 public:
  // `flags`: the job that the --set options alone describe, with its preset applied; `flag_positions`: of its keys.
  Translation(const v1::JobSpec& flags, const Positions& flag_positions, Problems* problems)
      : flags_(flags), flag_positions_(flag_positions), problems_(*problems) {}

  // Adds the values of a file. Reports those that the rules refuse. A second file (deepspeed_config_file) adds to the
  // first.
  void AddReading(const Reading& reading);

  // The value of a key that is given, not null and not refused; otherwise null.
  const Value* Find(absl::string_view canonical_key) const;
  // The same, but null for auto.
  const Value* FindFixed(absl::string_view canonical_key) const;
  absl::optional<bool> Flag(absl::string_view canonical_key) const;
  absl::optional<double> Number(absl::string_view canonical_key) const;

  // Sets a key of the job because of `from`. If two keys of the file disagree, the first one wins, and an error is
  // reported.
  void Set(const Value& from, absl::string_view key, absl::string_view yaml);
  // The same for a default of the other program that differs from ours; has no effect if the key is set already.
  void SetDefault(const Value& from, absl::string_view key, absl::string_view yaml, absl::string_view why);
  // Explains `from` to the user, for example why it has no effect in this file.
  void Explain(const Value& from, absl::string_view text);
  // The same, and adds it to notes(), which every command that reads the file prints: what "auto" became, for example.
  void Announce(const Value& from, absl::string_view text);
  void Warn(const Value& from, absl::string_view text);
  void Error(const Value& from, absl::string_view text);
  // Call it after an error, so that the key of the job is not also reported as missing.
  void Reject(absl::string_view key) { rejected_.emplace_back(key); }
  const std::vector<std::string>& rejected() const { return rejected_; }

  // Whether --set gives this key of the job.
  bool HasFlag(absl::string_view key) const { return flag_positions_.count(std::string(key)) > 0; }
  const v1::JobSpec& flags() const { return flags_; }
  // The family of models that --set names, as in job files.
  std::string FamilyOfModel() const;
  // The value in YAML that a key of the job has so far, from --set or the file; empty: none.
  std::string ValueOf(absl::string_view key) const;
  // The same from the file alone.
  std::string FileValueOf(absl::string_view key) const;
  // The first key of the file; null if it has none.
  const Value* First() const { return reading_.values.empty() ? nullptr : &reading_.values.front(); }

  // Corrects the effect of keys that set nothing in this file, and warns of those that no translator has read. Call it
  // after all translators.
  void Finish();

  struct Assigned {
    std::string value;
    Position position;
    std::string from;  // the key of the file
  };
  const std::map<std::string, Assigned>& assigned() const { return assigned_; }
  const std::vector<KeyOutcome>& outcomes() const { return outcomes_; }
  // Sentences for the user: values that --set replaced, and what "auto" became.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  KeyOutcome& OutcomeOf(const Value& value);
  void Judge(const Value& value);

  const v1::JobSpec& flags_;
  const Positions& flag_positions_;
  Problems& problems_;
  Reading reading_;
  std::map<std::string, Assigned> assigned_;  // by key of the job
  std::vector<KeyOutcome> outcomes_;          // parallel to reading_.values
  std::vector<bool> refused_;                 // parallel to reading_.values
  std::vector<std::string> rejected_;
  std::vector<std::string> notes_;
};

// Whether two values in YAML are the same. If both are numbers, compares them as numbers.
bool SameYaml(absl::string_view a, absl::string_view b);

// "16 = micro 2 x accumulation 4 x 2 data ranks", for the product of a batch.
std::string ProductText(uint64_t micro, uint64_t accumulation, uint64_t data_ranks);

}  // namespace trainyard::foreign
