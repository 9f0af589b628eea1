// Forwards each call to the machine's file system. Tests derive from it and override the calls they test.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/file_system.h"

namespace trainyard {

class ForwardingDisk : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override { return Real().Create(path); }
  absl::Status MakeFolder(const std::string& path) override { return Real().MakeFolder(path); }
  absl::Status SyncFolder(const std::string& path) override { return Real().SyncFolder(path); }
  absl::Status SyncFile(const std::string& path) override { return Real().SyncFile(path); }
  absl::Status RenameOrExchange(const std::string& from, const std::string& to) override {
    return Real().RenameOrExchange(from, to);
  }
  absl::Status RemoveAll(const std::string& path) override { return Real().RemoveAll(path); }
};

}  // namespace trainyard
