#include "worker/data/data_check.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/plural.h"

namespace trainyard {
namespace {

constexpr size_t kFilesShown = 3;

std::string SizesText(uint64_t files, uint64_t bytes, const std::string& hash) {
  return absl::StrCat(files, files == 1 ? " file of " : " files of ", bytes, " bytes (content hash ", hash, ")");
}

// Differences by path, in the order of the paths: first files of the checkpoint, then new ones.
std::vector<std::string> Differences(const ManifestData& before, const std::vector<Corpus::File>& files,
                                     const CorpusFingerprint& now) {
  std::map<std::string, size_t> current;
  for (size_t i = 0; i < files.size(); ++i) current[files[i].path] = i;
  std::vector<std::string> differences;
  for (const ManifestDataFile& file : before.list) {
    auto it = current.find(file.path);
    if (it == current.end()) {
      differences.push_back(absl::StrCat(file.path, " is missing"));
      continue;
    }
    const uint64_t bytes = static_cast<uint64_t>(files[it->second].num_bytes);
    const std::string& hash = now.file_hashes[it->second];
    if (bytes != file.bytes) {
      differences.push_back(absl::StrCat(file.path, " has ", bytes, " bytes, had ", file.bytes));
    } else if (hash != file.hash) {
      differences.push_back(absl::StrCat(file.path, " has the hash ", hash, ", had ", file.hash));
    }
    current.erase(it);
  }
  for (const auto& [path, i] : current) differences.push_back(absl::StrCat(path, " is new"));
  return differences;
}

constexpr uint64_t kRecordBytesMax = 4096;

// The content of kDataRecordName. A text that the file does not have is empty.
struct DataRecord {
  std::string identity, content_hash, host;
};

DataRecord ReadDataRecord(const std::string& run_folder) {
  const absl::StatusOr<std::string> text = ReadRegularFile(JoinPath(run_folder, kDataRecordName), kRecordBytesMax);
  if (!text.ok()) return {};
  const nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const auto text_of = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  return {.identity = text_of("identity"), .content_hash = text_of("content_hash"), .host = text_of("host")};
}

}  // namespace

bool DataIsRecorded(const std::string& run_folder, const std::string& content_hash, const std::string& identity) {
  const DataRecord record = ReadDataRecord(run_folder);
  return record.identity == identity && record.content_hash == content_hash;
}

std::string RecordedHost(const std::string& run_folder, const std::string& content_hash) {
  DataRecord record = ReadDataRecord(run_folder);
  return record.content_hash == content_hash ? std::move(record.host) : std::string();
}

absl::Status RecordData(const std::string& run_folder, const std::string& content_hash, const std::string& identity,
                        const std::string& host) {
  const DataRecord record = ReadDataRecord(run_folder);
  if (record.identity == identity && record.content_hash == content_hash && record.host == host) {
    return absl::OkStatus();
  }
  const nlohmann::ordered_json json = {{"identity", identity}, {"content_hash", content_hash}, {"host", host}};
  return WriteFileAtomically(JoinPath(run_folder, kDataRecordName), json.dump() + "\n");
}

std::vector<bool> FindHostsWithOtherData(const DataOfCheckpoint& checkpoint, const std::vector<DataOfRank>& ranks) {
  if (checkpoint.content_hash.empty()) return {};
  std::vector<bool> has_other;
  for (const DataOfRank& rank : ranks) has_other.push_back(rank.content_hash != checkpoint.content_hash);
  const bool none = std::find(has_other.begin(), has_other.end(), true) == has_other.end();
  const bool all = std::find(has_other.begin(), has_other.end(), false) == has_other.end();
  const bool knows_host = !checkpoint.host.empty();
  const bool had_data =
      std::any_of(ranks.begin(), ranks.end(), [&](const DataOfRank& rank) { return rank.host == checkpoint.host; });
  if (none || (all && (!knows_host || had_data))) return {};
  return has_other;
}

bool DataSizesMatch(const ManifestData& before, const std::vector<Corpus::File>& files) {
  if (before.content_hash.empty()) return true;
  if (before.num_files != files.size()) return false;
  uint64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += static_cast<uint64_t>(files[i].num_bytes);
    const bool listed = i < before.list.size();
    if (listed && before.list[i].bytes != static_cast<uint64_t>(files[i].num_bytes)) return false;
  }
  return before.num_bytes == bytes;
}

absl::Status CheckSameData(const ManifestData& before, const std::vector<Corpus::File>& files,
                           const CorpusFingerprint& now) {
  if (before.content_hash.empty() || before.content_hash == now.content_hash) return absl::OkStatus();
  std::string text = absl::StrCat("train.data is not what the checkpoint was made with: it has ",
                                  SizesText(now.num_files, now.num_bytes, now.content_hash), " now, and had ",
                                  SizesText(before.num_files, before.num_bytes, before.content_hash));
  if (!before.list.empty()) {
    std::vector<std::string> differences = Differences(before, files, now);
    const bool in_order = std::equal(before.list.begin(), before.list.end(), files.begin(), files.end(),
                                     [](const auto& then, const auto& file) { return then.path == file.path; });
    if (differences.empty()) {
      differences = {in_order ? "the files are the same, but not the tokenizer or the rules that turn text into tokens"
                              : "the files are the same and come in another order"};
    }
    absl::StrAppend(&text, ": ", JoinFirst(differences, kFilesShown, "; ", "; "));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(text,
                   ". Provide the data of the checkpoint, or continue with this data: --allow-data-change "
                   "(checkpoint.allow_data_change: true)"));
}

}  // namespace trainyard
