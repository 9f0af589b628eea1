// Checks that a resumed run reads the data that its checkpoint was made with.
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
// corpus takes long, and computing its identity does not. A missing or damaged file records nothing.
inline constexpr char kDataRecordName[] = ".data";
bool DataIsRecorded(const std::string& run_folder, const std::string& content_hash, const std::string& identity);
// Fails with the errors of the file system.
absl::Status RecordData(const std::string& run_folder, const std::string& content_hash, const std::string& identity);

}  // namespace trainyard
