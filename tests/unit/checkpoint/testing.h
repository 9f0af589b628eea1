// A small state, a file system that runs out of space and one with a rival, for the tests of checkpoints.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/import_writer.h"
#include "checkpoint/manifest.h"
#include "common/files.h"
#include "common/hash.h"
#include "tests/unit/checkpoint/forwarding_disk.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {

// A whole tensor in memory, dense and row-major. `bytes` is borrowed.
struct TensorBytes {
  std::string name;
  std::string role;
  std::string dtype;
  std::vector<int64_t> shape;
  absl::string_view bytes;
};

// Writes a checkpoint of these tensors below `run_folder`.
inline absl::StatusOr<SavedCheckpoint> WriteCheckpoint(const std::string& run_folder, Manifest manifest,
                                                       const std::vector<TensorBytes>& tensors,
                                                       FileSystem& file_system) {
  std::vector<TensorHeader> headers;
  for (const TensorBytes& tensor : tensors) {
    headers.push_back({.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  auto stream = [&](TensorSink sink) {
    for (const TensorBytes& tensor : tensors) {
      if (absl::Status status = sink(tensor.bytes); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  return WriteImportedCheckpoint(run_folder, std::move(manifest), headers, stream, file_system);
}

// Two parameters with their moments, whose values depend on `salt`.
class SmallState {
 public:
  explicit SmallState(float salt) {
    for (const char* role : {"parameter", "exp_avg", "exp_avg_sq"}) {
      Add(role, "wte.weight", {4, 6}, salt += 1);
      Add(role, "ln_f.bias", {6}, salt += 1);
    }
  }
  const std::vector<TensorBytes>& tensors() const { return tensors_; }
  absl::string_view Bytes(absl::string_view role, absl::string_view name) const {
    for (const TensorBytes& tensor : tensors_) {
      if (tensor.role == role && tensor.name == name) return tensor.bytes;
    }
    return "";
  }

 private:
  void Add(const char* role, const char* name, std::vector<int64_t> shape, float salt) {
    size_t elements = 1;
    for (int64_t size : shape) elements *= size;
    std::vector<float>& values = values_.emplace_back(elements);
    for (size_t i = 0; i < elements; ++i) values[i] = salt * 100 + static_cast<float>(i);
    tensors_.push_back({.name = name,
                        .role = role,
                        .dtype = "F32",
                        .shape = std::move(shape),
                        .bytes = {reinterpret_cast<const char*>(values.data()), elements * sizeof(float)}});
  }
  std::deque<std::vector<float>> values_;
  std::vector<TensorBytes> tensors_;
};

inline Manifest SmallManifest(uint64_t step) {
  Manifest manifest;
  manifest.job_id = "abcdefgh";
  manifest.job_name = "small";
  manifest.step = step;
  manifest.generation = 2;
  manifest.spec = std::string("\x0a\x05small\x00\xff", 9);
  manifest.spec_digest = HashHex(manifest.spec);
  manifest.seed = 1337;
  manifest.optimizer_updates = step;
  manifest.data = {.consumed_samples = step * 8, .epoch = 1, .num_files = 3, .num_bytes = 1000};
  manifest.strategy = "ddp";
  manifest.world_size = 2;
  manifest.bucket_order = {{"ln_f.bias"}, {"wte.weight"}};
  return manifest;
}

// Changes the file in place, because a new file costs a sync on some file systems.
inline void FlipBit(const std::string& path, uint64_t at, int bit) {
  const int fd = open(path.c_str(), O_RDWR);
  char byte = 0;
  ASSERT_EQ(pread(fd, &byte, 1, static_cast<off_t>(at)), 1) << path << " byte " << at;
  byte = static_cast<char>(byte ^ (1 << bit));
  ASSERT_EQ(pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
  close(fd);
}
inline void FlipByte(const std::string& path, size_t at) { FlipBit(path, at, 5); }

// Replaces the file by a link to itself. Opening it fails with an error (ELOOP) that does not show what is there.
inline void MakeUnreadable(const std::string& path) {
  std::filesystem::remove(path);
  std::filesystem::create_symlink(path, path);
}

// Returns the text of a manifest with a correct hash, as if a person had edited the text and updated its hash.
inline std::string Rehash(std::string text) {
  const std::string head = "{\n \"hash\": \"";
  text.replace(head.size(), 32, std::string(32, '0'));
  text.replace(head.size(), 32, HashHex(text));
  return text;
}

// Gives the manifest of the checkpoint a later version than this program reads, and the right hash.
inline void MakeLaterVersion(const std::string& checkpoint) {
  const std::string path = JoinPath(checkpoint, kManifestName);
  absl::StatusOr<std::string> text = ReadFile(path);
  ASSERT_TRUE(text.ok()) << text.status();
  const std::string version = absl::StrCat("\"version\": ", kManifestVersionWithoutSamples);
  ASSERT_NE(text->find(version), std::string::npos);
  text->replace(text->find(version), version.size(), "\"version\": 99");
  ASSERT_TRUE(WriteFileAtomically(path, Rehash(*text)).ok());
}

// A disk on which another process makes the folder `to` right before a finished folder gets that name.
class RivalDisk final : public ForwardingDisk {
 public:
  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override {
    EXPECT_TRUE(MakeFolders(to).ok());
    EXPECT_TRUE(WriteFileAtomically(to + "/mine.txt", "mine").ok());
    return ForwardingDisk::RenameOrExchange(from, to);
  }
};

// A disk with `free_bytes` of free space; removing files does not free any.
class FullDisk final : public ForwardingDisk {
 public:
  explicit FullDisk(int64_t free_bytes) : free_bytes_(free_bytes) {}

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    auto file = Real().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*this, *std::move(file), path);
  }

  void set_free_bytes(int64_t free_bytes) { free_bytes_ = free_bytes; }

 private:
  class File final : public WritableFile {
   public:
    File(FullDisk& disk, std::unique_ptr<WritableFile> file, std::string path)
        : disk_(disk), file_(std::move(file)), path_(std::move(path)) {}
    absl::Status Append(absl::string_view bytes) override {
      if ((disk_.free_bytes_ -= static_cast<int64_t>(bytes.size())) < 0)
        return ErrnoStatus(ENOSPC, absl::StrCat("cannot write ", path_));
      return file_->Append(bytes);
    }
    absl::Status StartWriteBack(uint64_t first, uint64_t last) override { return file_->StartWriteBack(first, last); }
    absl::Status AwaitWriteBack(uint64_t first, uint64_t last) override { return file_->AwaitWriteBack(first, last); }
    absl::Status Sync() override { return file_->Sync(); }

   private:
    FullDisk& disk_;
    std::unique_ptr<WritableFile> file_;
    std::string path_;
  };

  std::atomic<int64_t> free_bytes_;
};

}  // namespace trainyard
