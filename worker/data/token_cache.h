// A folder with the tokens of one set of files under one tokenizer and one set of rules for reading records and
// documents: a chunk for each piece of the data. Several ranks of several jobs may build it at the same time, and a
// crash at any moment leaves what was finished: each chunk is a file that appears complete or not at all, under the
// number of its piece. The content of a chunk follows from the key of the folder, so any rank may make it. The index
// appears last, when all chunks exist.
//
//   <runs>/.trainyard-tokens/<key>/00000.chunk   00001.chunk   ...   index.json
//   <runs>/<run>/.trainyard/tokens/<key>/...     if nothing can be written next to the run folder
//
// Chunks are made under a temporary name that is locked, so that what a crash has left can be removed.
//
// Thread-safe: nothing is kept in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// The folders that may hold the caches of a run, best first: a folder next to `run_folder`; one whose name ends with
// the user ID, for use if the former belongs to another user; a folder inside of `run_folder`. Does not look at them.
std::vector<std::string> TokenCacheRoots(const std::string& run_folder);
// Which of the `roots` next to the run folder this user uses: 1 if roots[0] belongs to another user, otherwise 0. On a
// file system that maps all users to another one (NFS with all_squash), the result is 0 only until roots[0] is made, so
// one rank must decide for all.
size_t RootNextToRun(const std::vector<std::string>& roots);
// Makes the folder, and checks that files can be made in it. Fails with the errors of the file system.
absl::Status MakeCacheRoot(const std::string& root);

class TokenCacheFolder {
 public:
  // Makes the folder, and removes temporary files that no process writes any more. Fails with the errors of the file
  // system.
  static absl::StatusOr<TokenCacheFolder> Make(const std::string& path);

  const std::string& path() const { return path_; }
  std::string ChunkPath(size_t chunk) const;
  bool HasChunk(size_t chunk) const;
  // Removes the chunk if its content does not match its hash or its size does not match its header; returns whether it
  // did. Reads the whole chunk.
  bool RemoveIfDamaged(size_t chunk) const;
  // Does nothing if the chunk exists. Possible errors: those of the file system (ResourceExhausted: the disk is full).
  absl::Status PublishChunk(size_t chunk, absl::string_view bytes) const;

  // Whether all chunks exist and have the sizes that the index records. A damaged index counts as missing.
  bool IsComplete(size_t num_chunks) const;
  // Records the sizes of all chunks, which must exist. Replaces an index that exists.
  absl::Status PublishIndex(size_t num_chunks) const;

 private:
  explicit TokenCacheFolder(std::string path) : path_(std::move(path)) {}
  absl::StatusOr<std::vector<uint64_t>> ChunkSizes(size_t num_chunks) const;

  std::string path_;
};

// The content hash that was recorded on `host` for the files with this identity (Corpus::identity), so that a restart
// need not read them. Empty: none was recorded.
std::string RecordedContent(const std::string& root, const std::string& host, const std::string& identity);
absl::Status RecordContent(const std::string& root, const std::string& host, const std::string& identity,
                           const std::string& content_hash);

}  // namespace trainyard
