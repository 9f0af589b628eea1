#include "worker/agent/log_pusher.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/steady_cond_var.h"
#include "trainyard/v1/agent.grpc.pb.h"
#include "worker/agent/log_file.h"
#include "worker/agent/rank_folder.h"
#include "worker/shim/records.h"

namespace trainyard::agent {
namespace {

// The coordinator refuses readers beyond kLogRequestsPerHost. Twice as many leave room for withdrawn requests that are
// still ending.
constexpr size_t kRequestsMax = 2 * limits::kLogRequestsPerHost;
constexpr size_t kReadBytes = 1 << 20;
constexpr size_t kChunkBytes = 256 << 10;
// Lines that are written within this time are sent together.
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
// FolderWatch notifies of new output. A notification may be lost, so the files are also checked at this interval.
constexpr absl::Duration kWatchedPollInterval = absl::Seconds(1);
// A progress bar may change many times a second; its newest text is sent at this interval.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// Without notifications, ranks that have written nothing for a while are checked less often.
constexpr absl::Duration kQuietAfter = absl::Seconds(1);
constexpr absl::Duration kQuietPollInterval = absl::Milliseconds(250);
// Without notifications, new rank folders are looked for at this interval.
constexpr absl::Duration kFolderPollInterval = absl::Milliseconds(500);

absl::Time Now() { return Clock::GetSteadyClock().TimeNow(); }

// The output of one rank in one generation.
struct Source {
  TrainerId id;
  std::string folder;
  LogFile out;
  LogFile err;
  absl::Time progress_at = absl::InfinitePast();  // when its progress bars were sent last
  bool ended = false;                             // the rank has ended, and all its output was read
};

}  // namespace

class LogPusher::Push {
 public:
  Push(LogPusher& owner, v1::LogRequest request, const CoordinatorChannel& coordinator)
      : owner_(owner), request_(std::move(request)), stub_(v1::AgentService::NewStub(coordinator.channel)) {
    coordinator.Authorize(context_);
    output_ = owner_.watch_.Subscribe([this] { NoteChange(has_output_); });
    folders_ = owner_.watch_.Subscribe([this] { NoteChange(has_folders_); });
    thread_ = std::thread([this] { Run(); });
  }
  ~Push() {
    thread_.join();
    owner_.watch_.Unsubscribe(output_);
    owner_.watch_.Unsubscribe(folders_);
  }

  void Stop() {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  void Cancel() {
    Stop();
    context_.TryCancel();
  }

 private:
  void Run();
  void NoteChange(bool& what);
  void FindSources();
  // The next seven functions return false if the coordinator accepts no more output.
  bool SendStoredOutput();
  bool Follow();
  bool SendNewLines(Source& source);
  bool SendProgress(Source& source);
  bool Send(const Source& source, bool is_stderr, const std::vector<std::string>& lines);
  bool Add(const TrainerId& id, bool is_stderr, const std::string& text, bool is_progress = false);
  bool Flush();
  // Waits until the output should be checked again. Returns false if the request was withdrawn.
  bool Pause();

  LogPusher& owner_;
  const v1::LogRequest request_;
  const std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  v1::PushLogsResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::LogChunk>> writer_;

  // Used by the thread only.
  std::vector<Source> sources_;  // older generations first
  std::set<TrainerId> known_;
  v1::LogChunk chunk_;
  size_t chunk_bytes_ = 0;
  absl::Time wrote_at_ = Now();   // when output was found last
  absl::Time looked_at_ = Now();  // when output was looked for last
  absl::Time find_sources_at_ = Now();
  bool is_watched_ = false;  // whether FolderWatch notifies of all new output

  uint64_t output_ = 0;  // the subscriptions of output, and of new rank folders
  uint64_t folders_ = 0;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool has_output_ = false;  // guarded by mu_, and so is has_folders_
  bool has_folders_ = false;
  std::thread thread_;  // last: it uses the other members
};

LogPusher::LogPusher(std::string ranks_folder, Post post) : ranks_(std::move(ranks_folder)), post_(std::move(post)) {}

LogPusher::~LogPusher() {
  absl::MutexLock lock(&mu_);
  for (auto& [id, push] : pushes_) push->Cancel();
  pushes_.clear();
}

void LogPusher::Start(const v1::LogRequest& request, const CoordinatorChannel& coordinator) {
  absl::MutexLock lock(&mu_);
  if (pushes_.size() >= kRequestsMax || coordinator.channel == nullptr) return post_(LogsEnded{request.request_id()});
  pushes_[request.request_id()] = std::make_unique<Push>(*this, request, coordinator);
}

void LogPusher::Stop(const std::string& request_id) {
  absl::MutexLock lock(&mu_);
  auto at = pushes_.find(request_id);
  if (at != pushes_.end()) at->second->Stop();
}

void LogPusher::Remove(const std::string& request_id) {
  std::unique_ptr<Push> done;  // joins its thread, which is about to end
  absl::MutexLock lock(&mu_);
  auto at = pushes_.find(request_id);
  if (at == pushes_.end()) return;
  done = std::move(at->second);
  pushes_.erase(at);
}

void LogPusher::Push::Run() {
  chunk_.set_request_id(request_.request_id());
  writer_ = stub_->PushLogs(&context_, &response_);
  is_watched_ = request_.follow() && owner_.watch_.Watch(folders_, owner_.ranks_);
  FindSources();
  bool accepted = SendStoredOutput();
  if (accepted && request_.follow()) accepted = Follow();
  // If no chunk was sent yet, this one is sent even if it is empty: it names the request.
  if (accepted) accepted = Flush();
  writer_->WritesDone();
  writer_->Finish();
  owner_.post_(LogsEnded{request_.request_id()});
}

void LogPusher::Push::NoteChange(bool& what) {
  absl::MutexLock lock(&mu_);
  what = true;
  changed_.SignalAll();
}

void LogPusher::Push::FindSources() {
  find_sources_at_ = Now() + (is_watched_ ? kWatchedPollInterval : kFolderPollInterval);
  std::vector<TrainerId> found;
  for (const TrainerId& id : ListRankFolders(owner_.ranks_)) {
    bool is_requested =
        std::count(request_.ranks().begin(), request_.ranks().end(), id.rank) > 0 || request_.ranks().empty();
    if (id.job.value() == request_.job_id() && is_requested && known_.insert(id).second) found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  for (const TrainerId& id : found) {
    std::string folder = JoinPath(owner_.ranks_, FolderName(id));
    // Watches the folder before its output is read, so that no line is missed. A rank that has ended writes no more.
    if (is_watched_ && !ReadExit(folder).ok()) is_watched_ = owner_.watch_.Watch(output_, folder);
    sources_.push_back(
        {id, folder, LogFile(JoinPath(folder, shim::kStdoutFile)), LogFile(JoinPath(folder, shim::kStderrFile))});
  }
}

bool LogPusher::Push::SendNewLines(Source& source) {
  // Read before the output: if the rank had ended by then, all of its output is read below.
  absl::StatusOr<v1::TrainerExited> exited = ReadExit(source.folder);
  for (bool is_stderr : {false, true}) {
    LogFile& file = is_stderr ? source.err : source.out;
    bool more = true;
    while (more) {
      std::vector<std::string> lines;
      more = file.Read(kReadBytes, &lines);
      if (!more && exited.ok()) file.Finish(&lines);
      if (!Send(source, is_stderr, lines)) return false;
    }
  }
  source.ended = exited.ok();
  return source.ended || SendProgress(source);
}

bool LogPusher::Push::SendProgress(Source& source) {
  if (Now() < source.progress_at + kProgressInterval) return true;
  for (bool is_stderr : {false, true}) {
    const std::string progress = (is_stderr ? source.err : source.out).TakeProgress();
    if (progress.empty()) continue;
    source.progress_at = Now();
    if (!Add(source.id, is_stderr, progress, /*is_progress=*/true)) return false;
  }
  return true;
}

bool LogPusher::Push::SendStoredOutput() {
  if (request_.tail_lines() == 0) {
    for (Source& source : sources_) {
      if (!SendNewLines(source)) return false;
    }
    return Flush();
  }
  struct Line {
    TrainerId id;
    bool is_stderr;
    std::string text;
    bool is_progress;
  };
  std::map<uint32_t, std::deque<Line>> tails;  // by rank
  for (Source& source : sources_) {
    bool ended = ReadExit(source.folder).ok();
    for (bool is_stderr : {false, true}) {
      LogFile& file = is_stderr ? source.err : source.out;
      std::deque<Line>& tail = tails[source.id.rank];
      bool more = true;
      while (more) {
        std::vector<std::string> lines;
        more = file.Read(kReadBytes, &lines);
        if (!more && ended) file.Finish(&lines);
        const size_t stored = lines.size();
        if (!more && !ended) {
          if (std::string progress = file.TakeProgress(); !progress.empty()) lines.push_back(std::move(progress));
        }
        for (size_t i = 0; i < lines.size(); ++i) {
          tail.push_back({source.id, is_stderr, std::move(lines[i]), i >= stored});
          if (tail.size() > request_.tail_lines()) tail.pop_front();
        }
      }
    }
    source.ended = ended;
  }
  for (const auto& [rank, tail] : tails) {
    for (const Line& line : tail) {
      if (!Add(line.id, line.is_stderr, line.text, line.is_progress)) return false;
    }
  }
  return Flush();
}

// Continues until the request is withdrawn or no longer follows: only the coordinator knows whether a rank that has
// ended will be started again.
bool LogPusher::Push::Follow() {
  for (bool wanted = true; wanted;) {
    wanted = Pause();
    looked_at_ = Now();
    if (looked_at_ >= find_sources_at_ || !wanted) FindSources();
    for (Source& source : sources_) {
      if (!source.ended && !SendNewLines(source)) return false;
    }
    if (!Flush()) return false;
  }
  return true;
}

bool LogPusher::Push::Send(const Source& source, bool is_stderr, const std::vector<std::string>& lines) {
  return std::all_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return Add(source.id, is_stderr, line); });
}

bool LogPusher::Push::Add(const TrainerId& id, bool is_stderr, const std::string& text, bool is_progress) {
  v1::LogLine* line = chunk_.add_lines();
  line->set_rank(id.rank);
  line->set_generation(id.generation.value());
  line->set_is_stderr(is_stderr);
  line->set_text(text);
  line->set_is_progress(is_progress);
  chunk_bytes_ += text.size() + 16;  // 16: about the size of the other fields of a line
  return chunk_bytes_ < kChunkBytes || Flush();
}

bool LogPusher::Push::Flush() {
  if (chunk_.lines().empty() && chunk_.request_id().empty()) return true;
  wrote_at_ = Now();
  bool accepted = writer_->Write(chunk_);
  chunk_.Clear();  // only the first chunk names the request
  chunk_bytes_ = 0;
  return accepted;
}

bool LogPusher::Push::Pause() {
  const bool is_quiet = Now() - wrote_at_ > kQuietAfter;
  const absl::Duration longest = is_watched_ ? kWatchedPollInterval : is_quiet ? kQuietPollInterval : kPollInterval;
  absl::MutexLock lock(&mu_);
  const auto changed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || has_output_ || has_folders_; };
  const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
  changed_.AwaitFor(&mu_, longest, changed);
  const absl::Duration early = looked_at_ + kPollInterval - Now();
  if (early > absl::ZeroDuration()) changed_.AwaitFor(&mu_, early, stopping);
  if (std::exchange(has_folders_, false)) find_sources_at_ = absl::InfinitePast();
  has_output_ = false;
  return !stopping_;
}

}  // namespace trainyard::agent
