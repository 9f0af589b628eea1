#include "worker/agent/outbox_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/private_folder.h"
#include "common/status_macros.h"

namespace trainyard::agent {
namespace {

class OutboxFile final : public OutboxStorage {
 public:
  explicit OutboxFile(std::string path) : path_(std::move(path)) {}
  ~OutboxFile() override { Close(); }

  absl::StatusOr<std::string> Read() override {
    absl::StatusOr<std::string> bytes = ReadFile(path_, 16 * limits::kOutboxBytes);
    return absl::IsNotFound(bytes.status()) ? std::string() : bytes;
  }

  absl::Status Append(absl::string_view bytes) override {
    if (fd_ < 0) fd_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd_ < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", path_));
    while (!bytes.empty()) {
      ssize_t n = write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    if (fdatasync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat("cannot sync ", path_));
    struct stat open_file;
    if (fstat(fd_, &open_file) != 0) return ErrnoStatus(errno, absl::StrCat("cannot stat ", path_));
    // A removed file still accepts writes, which would be lost.
    if (IdOf(path_) == FileId{.device = open_file.st_dev, .inode = open_file.st_ino}) return absl::OkStatus();
    Close();
    return absl::NotFoundError(absl::StrCat(path_, " was removed while this daemon wrote to it"));
  }

  absl::Status Replace(absl::string_view bytes) override {
    Close();  // the open file is replaced
    return WriteFileAtomically(path_, bytes);
  }

 private:
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  const std::string path_;
  int fd_ = -1;
};

}  // namespace

std::unique_ptr<OutboxStorage> NewOutboxFile(std::string path) { return std::make_unique<OutboxFile>(std::move(path)); }

OutboxWriter::OutboxWriter(OutboxStorage& storage, Post post)
    : storage_(storage), post_(std::move(post)), thread_([this] { Run(); }) {}

OutboxWriter::~OutboxWriter() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void OutboxWriter::Write(StoreFacts facts) {
  absl::MutexLock lock(&mu_);
  next_ = std::move(facts);
}

void OutboxWriter::Run() {
  while (true) {
    StoreFacts facts;
    {
      absl::MutexLock lock(&mu_);
      auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return next_.has_value() || stopping_; };
      mu_.Await(absl::Condition(&ready));
      if (!next_.has_value()) return;
      facts = *std::move(next_);
      next_.reset();
    }
    post_(FactsStored{facts.replace ? storage_.Replace(facts.bytes) : storage_.Append(facts.bytes)});
  }
}

}  // namespace trainyard::agent
