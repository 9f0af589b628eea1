// A disk that records its calls as texts: "append 262144", "start 0-262144", "sync".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/unit/checkpoint/forwarding_disk.h"

namespace trainyard {

class RecordingDisk final : public ForwardingDisk {
 public:
  // Called with the text of every call of a file; an error becomes the result of the call.
  std::function<absl::Status(const std::string& call)> on_call = [](const std::string&) { return absl::OkStatus(); };

  std::vector<std::string> calls() const {
    absl::MutexLock lock(&mu_);
    return calls_;
  }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    auto file = Real().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*this, *std::move(file));
  }

 private:
  class File final : public WritableFile {
   public:
    File(RecordingDisk& disk, std::unique_ptr<WritableFile> file) : disk_(disk), file_(std::move(file)) {}
    absl::Status Append(absl::string_view bytes) override {
      absl::Status recorded = disk_.Record(absl::StrCat("append ", bytes.size()));
      return recorded.ok() ? file_->Append(bytes) : recorded;
    }
    absl::Status StartWriteBack(uint64_t first, uint64_t last) override {
      absl::Status recorded = disk_.Record(absl::StrCat("start ", first, "-", last));
      return recorded.ok() ? file_->StartWriteBack(first, last) : recorded;
    }
    absl::Status AwaitWriteBack(uint64_t first, uint64_t last) override {
      absl::Status recorded = disk_.Record(absl::StrCat("await ", first, "-", last));
      return recorded.ok() ? file_->AwaitWriteBack(first, last) : recorded;
    }
    absl::Status Sync() override {
      absl::Status recorded = disk_.Record("sync");
      return recorded.ok() ? file_->Sync() : recorded;
    }

   private:
    RecordingDisk& disk_;
    const std::unique_ptr<WritableFile> file_;
  };

  absl::Status Record(std::string call) {
    {
      absl::MutexLock lock(&mu_);
      calls_.push_back(call);
    }
    return on_call(call);
  }

  mutable absl::Mutex mu_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
