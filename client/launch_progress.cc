#include "client/launch_progress.h"

#include <stdio.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/text.h"
#include "common/files.h"

namespace trainyard::client {
namespace {

// The number of files of ranks that are open at a time. Before another one is opened, all of them are closed.
constexpr size_t kOpenFilesMax = 256;

class LaunchProgress final : public Progress {
 public:
  explicit LaunchProgress(const LaunchPlan& plan)
      : plan_(plan), stdout_on_terminal_(isatty(STDOUT_FILENO) != 0), stderr_on_terminal_(isatty(STDERR_FILENO) != 0) {}
  ~LaunchProgress() override { CloseFiles(); }

  void Start(const v1::Job& job, const std::vector<std::string>& warnings) override {
    job_id_ = job.job_id();
    for (const std::string& warning : warnings) Say(absl::StrCat("warning: ", warning));
  }

  void Event(const v1::Event& event) override {
    stats_.Add(event);
    if (event.has_notice()) return Notice(event.notice().level(), event.notice().text());
    if (!event.has_state() || event.state().reason() == last_text_) return;
    const v1::JobState state = event.state().state();
    if (state == v1::JOB_STATE_RECOVERING || state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_PAUSED) {
      // Not shown, because the private daemon attaches within milliseconds after the job is queued.
      if (state == v1::JOB_STATE_QUEUED && event.state().reason() == "accepted") return;
      Say(absl::StrCat(absl::AsciiStrToLower(StateName(state)), ": ", event.state().reason()));
    }
  }

  void Notice(absl::string_view level, absl::string_view text) override {
    if (level == "info" || text == last_text_) return;
    last_text_ = std::string(text);
    Say(absl::StrCat(level, ": ", text));
  }

  void Message(absl::string_view text) override { Say(text); }

  void Output(const v1::LogLine& line) override {
    const uint32_t local_rank = line.rank() % plan_.ranks_per_host;
    const bool tees = plan_.tee.Has(local_rank, line.is_stderr());
    const bool redirects = plan_.redirects.Has(local_rank, line.is_stderr());
    if (!plan_.log_dir.empty()) Store(line);
    const bool filtered = !plan_.filter.empty() && plan_.filter.count(local_rank) == 0;
    if (filtered || (redirects && !tees)) return;
    const bool on_terminal = line.is_stderr() ? stderr_on_terminal_ : stdout_on_terminal_;
    const std::string text = on_terminal ? LogLineForTerminals(line.text()) : line.text();
    const std::string prefix = plan_.prefixes ? absl::StrCat("[", plan_.role, line.rank(), "]:") : "";
    WriteNow(line.is_stderr() ? stderr : stdout, absl::StrCat(prefix, text, "\n"));
  }

  void Done(const v1::Job& job, const std::string& details, int) override {
    CloseFiles();
    if (job.state() != v1::JOB_STATE_SUCCEEDED) SayUnprefixed(absl::StrCat("\n", details));
  }

 private:
  void Store(const v1::LogLine& line) {
    const std::string path = OutputFile(plan_.log_dir, job_id_, line);
    auto at = files_.find(path);
    if (at == files_.end()) {
      if (files_.size() >= kOpenFilesMax) CloseFiles();
      const absl::Status made = MakeFolders(path.substr(0, path.rfind('/')));
      FILE* file = made.ok() ? fopen(path.c_str(), "ae") : nullptr;
      if (file == nullptr) ReportNotStored(path);
      at = files_.emplace(path, file).first;
    }
    if (at->second == nullptr) return;
    WriteNow(at->second, absl::StrCat(line.text(), "\n"));
    if (ferror(at->second) != 0) ReportNotStored(path);
  }

  // Reports the first file that lacks output, because it cannot be created or written (the disk may be full).
  void ReportNotStored(const std::string& path) {
    if (std::exchange(store_failed_, true)) return;
    Say(absl::StrCat("--log-dir: ", path, " cannot be written, so output is missing there"));
  }

  void CloseFiles() {
    for (const auto& [path, file] : files_) {
      if (file != nullptr) fclose(file);
    }
    files_.clear();
  }

  const LaunchPlan plan_;
  const bool stdout_on_terminal_, stderr_on_terminal_;
  std::string job_id_;
  std::string last_text_;
  std::map<std::string, FILE*> files_;  // null: cannot be written
  bool store_failed_ = false;
};

}  // namespace

std::string OutputFile(const std::string& log_dir, const std::string& job_id, const v1::LogLine& line) {
  const uint64_t attempt = line.generation() > 0 ? line.generation() - 1 : 0;
  return JoinPath(log_dir, absl::StrCat(job_id, "/attempt_", attempt, "/", line.rank(), "/",
                                        line.is_stderr() ? "stderr.log" : "stdout.log"));
}

std::unique_ptr<Progress> NewLaunchProgress(const LaunchPlan& plan) { return std::make_unique<LaunchProgress>(plan); }

}  // namespace trainyard::client
