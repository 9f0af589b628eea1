// Whether a resumed run sees the data that its checkpoint was made with.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "checkpoint/manifest.h"
#include "worker/data/corpus.h"

namespace trainyard {

// What a look at the files tells, without reading them: as many, and of the same sizes in the same order. A checkpoint
// that was made without data has nothing to differ from.
bool DataLookSame(const ManifestData& before, const std::vector<Corpus::File>& files);

// By what the files hold: the same bytes in the same order, under whatever names. Possible errors: FailedPrecondition,
// naming up to three files that are new, gone, or differ in size or content, and both ways out.
absl::Status CheckSameData(const ManifestData& before, const std::vector<Corpus::File>& files,
                           const CorpusFingerprint& now);

// What a run folder remembers: the files of this identity (Corpus::identity) have been read, and that was their
// content. Reading a corpus takes long, looking at its files does not. A file that is missing or damaged knows nothing.
inline constexpr char kDataRecordName[] = ".data";
bool DataIsKnown(const std::string& run_folder, const std::string& content_hash, const std::string& identity);
// Possible errors: those of the file system.
absl::Status NoteData(const std::string& run_folder, const std::string& content_hash, const std::string& identity);

}  // namespace trainyard
