#include "client/log_cursor.h"

#include <algorithm>

namespace trainyard::client {

void LogCursor::Push(const std::string& text, std::deque<std::string>* window) {
  window->push_back(text);
  if (window->size() > kWindow) window->pop_front();
}

void LogCursor::RecordShown(const v1::LogLine& line) {
  if (!line.is_progress()) Push(line.text(), &last_[KeyOf(line)]);
}

bool LogCursor::IsNew(const v1::LogLine& line) {
  if (line.is_progress()) return true;
  auto it = skip_.find(KeyOf(line));
  if (it == skip_.end() || it->second == 0) return true;
  --it->second;
  return false;
}

void LogCursor::Search::Add(const v1::LogLine& line) {
  if (line.is_progress()) return;  // the next stream contains its newest text
  const Key key = KeyOf(line);
  Stream& stream = streams_[key];
  ++stream.lines;
  lines_.emplace_back(stream.lines, line);
  if (lines_.size() > kLinesMax) lines_.pop_front();
  auto window = cursor_.last_.find(key);
  if (window == cursor_.last_.end()) return;
  stream.last.push_back(line.text());
  if (stream.last.size() > window->second.size()) stream.last.pop_front();
  if (stream.last == window->second) stream.shown = stream.lines;
}

// Lines of earlier generations of a rank are older than the lines shown, so all are left out. If lines of only one
// stream of the newest generation were shown, for example of standard output, the other stream may have new lines, so
// its last `tail_` lines are shown.
uint64_t LogCursor::LeftOut(const Key& key, uint64_t lines) const {
  uint64_t newest = 0;  // the newest generation of the rank of which a line was shown
  for (const auto& [shown, window] : last_) {
    if (std::get<1>(shown) == std::get<1>(key)) newest = std::max(newest, std::get<0>(shown));
  }
  if (tail_ == 0 || std::get<0>(key) > newest) return 0;
  return std::get<0>(key) < newest ? lines : lines - std::min(lines, tail_);
}

std::vector<v1::LogLine> LogCursor::Search::NewLines() {
  for (auto& [key, stream] : streams_) {
    if (!cursor_.last_.contains(key)) stream.shown = cursor_.LeftOut(key, stream.lines);
  }
  std::vector<v1::LogLine> new_lines;
  for (auto& [number, line] : lines_) {
    if (number > streams_[KeyOf(line)].shown) new_lines.push_back(std::move(line));
  }
  lines_.clear();
  cursor_.skip_.clear();
  for (const auto& [key, stream] : streams_) cursor_.skip_[key] = stream.lines;
  for (const v1::LogLine& line : new_lines) cursor_.RecordShown(line);
  return new_lines;
}

}  // namespace trainyard::client
