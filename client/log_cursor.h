// Remembers which lines of a job's output have been shown, so that a reader continues after a lost connection without
// repeating or skipping lines. Output lines have no numbers. Therefore all stored output is read again after
// reconnecting, and the position is found by matching the lines shown last. Progress bars do not count, because the
// stored output has only their final texts. Pure.
//
//   cursor.RecordShown(line)...                 for the first stream
//   LogCursor::Search search = cursor.Resume(); search.Add(line)...   all stored output, without following
//   for (line : search.NewLines()) show the line
//   cursor.IsNew(line)...                       for the next stream, which follows from the beginning
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

class LogCursor {
 public:
  using Key = std::tuple<uint64_t, uint32_t, bool>;  // generation, rank, standard error

  // `tail`: the first stream begins with the last `tail` lines of each rank; 0: with all stored lines.
  explicit LogCursor(uint64_t tail = 0) : tail_(tail) {}

  // One pass over all stored output.
  class Search {
   public:
    void Add(const v1::LogLine& line);
    // Returns the lines after the position of each stream in the order in which they were added, at most kLinesMax, and
    // moves the cursor behind the last of them.
    std::vector<v1::LogLine> NewLines();

   private:
    friend class LogCursor;
    explicit Search(LogCursor& cursor) : cursor_(cursor) {}
    struct Stream {
      uint64_t lines = 0;            // read so far
      uint64_t shown = 0;            // the position: how many of them were shown
      std::deque<std::string> last;  // the lines read last, as many as are compared
    };
    LogCursor& cursor_;
    std::map<Key, Stream> streams_;
    std::deque<std::pair<uint64_t, v1::LogLine>> lines_;  // each with its line number in its stream, from 1
  };

  void RecordShown(const v1::LogLine& line);
  Search Resume() { return Search(*this); }
  // For a stream that starts at the beginning of the stored output, after NewLines: returns whether this line comes
  // after the lines shown so far.
  bool IsNew(const v1::LogLine& line);

  // The number of lines that are compared. If more than this many consecutive lines are equal, some of them may be
  // skipped after a reconnect.
  static constexpr size_t kWindow = 16;
  static constexpr size_t kLinesMax = 100'000;

 private:
  static Key KeyOf(const v1::LogLine& line) { return {line.generation(), line.rank(), line.is_stderr()}; }
  static void Push(const std::string& text, std::deque<std::string>* window);
  // For a stream of `lines` lines of which none was shown: how many of its first lines the tail left out, so that they
  // are not new.
  uint64_t LeftOut(const Key& key, uint64_t lines) const;

  const uint64_t tail_;
  std::map<Key, std::deque<std::string>> last_;  // the lines shown last, at most kWindow
  std::map<Key, uint64_t> skip_;                 // how many lines IsNew still skips
};

}  // namespace trainyard::client
