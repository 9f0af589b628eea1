#include "tests/unit/checkpoint/forgetful_disk.h"

#include <filesystem>
#include <fstream>
#include <random>

#include "absl/status/status.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

namespace fs = std::filesystem;

struct ForgetfulDisk::Node {
  bool is_folder = false;
  std::string live, synced;                                // of a file: now, and when it was last synced
  std::map<std::string, NodePtr> entries, synced_entries;  // of a folder: now, and when it was last synced
  std::vector<Change> pending;                             // the changes from `synced_entries` to `entries`
};

namespace {

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string ParentOf(const std::string& path) { return fs::path(path).parent_path().string(); }
std::string NameOf(const std::string& path) { return fs::path(path).filename().string(); }

// Returns the bytes that a crash leaves of a file that holds `live`, of which only `synced` was synced.
std::string Torn(const std::string& live, const std::string& synced, std::mt19937& random) {
  const size_t more = live.size() - std::min(live.size(), synced.size());
  std::string left = live.substr(0, live.size() - more + random() % (more + 1));
  if (random() % 3 == 0) left.resize(live.size(), '\0');  // the length survived, the bytes did not
  return left;
}

}  // namespace

class ForgetfulDisk::File final : public WritableFile {
 public:
  File(ForgetfulDisk& disk, NodePtr node, std::unique_ptr<WritableFile> real)
      : disk_(disk), node_(std::move(node)), real_(std::move(real)) {}
  absl::Status Append(absl::string_view bytes) override {
    RETURN_IF_ERROR(disk_.Call());
    node_->live.append(bytes.data(), bytes.size());
    return real_->Append(bytes);
  }
  // Starting a write-back makes nothing durable.
  absl::Status StartWriteBack(uint64_t, uint64_t) override { return disk_.Call(); }
  absl::Status AwaitWriteBack(uint64_t, uint64_t) override { return disk_.Call(); }
  absl::Status Sync() override {
    RETURN_IF_ERROR(disk_.Call());
    node_->synced = node_->live;
    return absl::OkStatus();
  }

 private:
  ForgetfulDisk& disk_;
  const NodePtr node_;
  const std::unique_ptr<WritableFile> real_;
};

ForgetfulDisk::ForgetfulDisk(std::string root) : root_(std::move(root)) { Restart(Survives::kEverything); }

ForgetfulDisk::~ForgetfulDisk() = default;

absl::Status ForgetfulDisk::Call() {
  if (crashed_ || calls_left_ == 0) {
    crashed_ = true;
    return absl::AbortedError("the machine is off");
  }
  if (calls_left_ > 0) --calls_left_;
  ++num_calls_;
  return absl::OkStatus();
}

ForgetfulDisk::NodePtr ForgetfulDisk::Find(const std::string& path) const {
  NodePtr node = tree_;
  const fs::path relative = fs::path(path).lexically_relative(root_);
  for (const fs::path& part : relative) {
    if (part == ".") continue;
    auto found = node->entries.find(part.string());
    if (found == node->entries.end()) return nullptr;
    node = found->second;
  }
  return node;
}

void ForgetfulDisk::Apply(const std::string& folder, Change change) {
  const NodePtr node = Find(folder);
  for (const auto& [name, entry] : change) {
    if (entry == nullptr) {
      node->entries.erase(name);
    } else {
      node->entries[name] = entry;
    }
  }
  node->pending.push_back(std::move(change));
}

absl::StatusOr<std::unique_ptr<WritableFile>> ForgetfulDisk::Create(const std::string& path) {
  RETURN_IF_ERROR(Call());
  ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> real, Real().Create(path));
  auto node = std::make_shared<Node>();
  Apply(ParentOf(path), {{NameOf(path), node}});
  return std::make_unique<File>(*this, std::move(node), std::move(real));
}

absl::Status ForgetfulDisk::MakeFolder(const std::string& path) {
  RETURN_IF_ERROR(Call());
  RETURN_IF_ERROR(Real().MakeFolder(path));
  auto node = std::make_shared<Node>();
  node->is_folder = true;
  Apply(ParentOf(path), {{NameOf(path), std::move(node)}});
  return absl::OkStatus();
}

absl::Status ForgetfulDisk::SyncFolder(const std::string& path) {
  RETURN_IF_ERROR(Call());
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(path);
  node->synced_entries = node->entries;
  node->pending.clear();
  return absl::OkStatus();
}

absl::Status ForgetfulDisk::SyncFile(const std::string& path) {
  RETURN_IF_ERROR(Call());
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::NotFoundError(path);
  node->synced = node->live;
  return absl::OkStatus();
}

absl::Status ForgetfulDisk::RenameOrExchange(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(Call());
  RETURN_IF_ERROR(Real().RenameOrExchange(from, to));
  Apply(ParentOf(from), {{NameOf(from), Find(to)}, {NameOf(to), Find(from)}});
  return absl::OkStatus();
}

absl::Status ForgetfulDisk::RemoveAll(const std::string& path) {
  RETURN_IF_ERROR(Call());
  const NodePtr node = Find(path);
  if (node == nullptr) return absl::OkStatus();
  for (const auto& entry : std::map(node->entries)) Apply(path, {{entry.first, nullptr}});
  Apply(ParentOf(path), {{NameOf(path), nullptr}});
  return Real().RemoveAll(path);
}

void ForgetfulDisk::Restart(Survives survives, uint32_t seed) {
  calls_left_ = -1;
  num_calls_ = 0;
  crashed_ = false;
  if (survives == Survives::kProcess) return;
  std::mt19937 random(seed);
  // Changes a node to its state after the power cut.
  auto cut_power = [&](const auto& self, Node& node) -> void {
    if (survives == Survives::kSynced) node.live = node.synced;
    if (survives == Survives::kSome && !node.is_folder) node.live = Torn(node.live, node.synced, random);
    node.synced = node.live;
    if (survives == Survives::kSynced) node.entries = node.synced_entries;
    if (survives == Survives::kSome) {
      node.entries = node.synced_entries;
      node.pending.resize(random() % (node.pending.size() + 1));
      for (const Change& change : node.pending) {
        for (const auto& [name, entry] : change) {
          if (entry == nullptr) {
            node.entries.erase(name);
          } else {
            node.entries[name] = entry;
          }
        }
      }
    }
    node.synced_entries = node.entries;
    node.pending.clear();
    for (const auto& entry : node.entries) self(self, *entry.second);
  };
  if (tree_ != nullptr) {
    cut_power(cut_power, *tree_);
    for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry.path());
    WriteTree(root_, tree_);
    return;
  }
  // On the first call the present files are the synced state.
  auto read = [&](const auto& self, const fs::path& path) -> NodePtr {
    auto node = std::make_shared<Node>();
    node->is_folder = fs::is_directory(path);
    if (!node->is_folder) {
      node->live = node->synced = ReadAll(path);
      return node;
    }
    for (const auto& entry : fs::directory_iterator(path)) {
      node->entries[entry.path().filename().string()] = self(self, entry.path());
    }
    node->synced_entries = node->entries;
    return node;
  };
  tree_ = read(read, root_);
}

void ForgetfulDisk::WriteTree(const std::string& path, const NodePtr& node) {
  if (!node->is_folder) {
    std::ofstream(path, std::ios::binary) << node->live;
    return;
  }
  fs::create_directories(path);
  for (const auto& [name, entry] : node->entries) WriteTree(JoinPath(path, name), entry);
}

}  // namespace trainyard
