// Checks that a resumed run reads the data that its checkpoint was made with, and decides which hosts have other data.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/manifest.h"
#include "worker/data/corpus.h"

namespace trainyard {

// Compares number and sizes of the files, in order, without reading them. Always true for a checkpoint that was made
// without data.
bool DataSizesMatch(const ManifestData& before, const std::vector<Corpus::File>& files);

// Compares the contents of the files: they must have the same bytes in the same order, under any names. Fails with
// FailedPrecondition, which names up to three files that are new, missing, or differ in size or content, and says what
// to do.
absl::Status CheckSameData(const ManifestData& before, const std::vector<Corpus::File>& files,
                           const CorpusFingerprint& now);

// A file in the run folder that records the content hash of the files with a given Corpus::identity, because reading a
// corpus takes long, and computing its identity does not. It also records the host that has these files. A missing or
// damaged file records nothing.
inline constexpr char kDataRecordName[] = ".data";
bool DataIsRecorded(const std::string& run_folder, const std::string& content_hash, const std::string& identity);
// The host that last had data with this content hash; empty: none is recorded.
std::string RecordedHost(const std::string& run_folder, const std::string& content_hash);
// Fails with the errors of the file system.
absl::Status RecordData(const std::string& run_folder, const std::string& content_hash, const std::string& identity,
                        const std::string& host);

// What rank 0 knows about the data that the checkpoint of a restart was made with.
struct DataOfCheckpoint {
  std::string content_hash;  // empty: unknown
  std::string host;          // RecordedHost
};

struct DataOfRank {
  std::string host;
  std::string content_hash;
};

// Returns, for each rank, whether its host has other data than the checkpoint, so that the job can run on other hosts.
// Returns an empty list if the job must be refused: nothing shows which data is right, or also the host that had the
// data of the checkpoint has other data now, or no rank has other data. Pure.
std::vector<bool> FindHostsWithOtherData(const DataOfCheckpoint& checkpoint, const std::vector<DataOfRank>& ranks);

}  // namespace trainyard
