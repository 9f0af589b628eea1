// What of a job's output has been shown, so that a reader whose coordinator went away reads on without a line twice or
// left out. Output has no numbers: after a break everything that is kept is read again, and the place is found by the
// lines shown last. Pure.
//
//   cursor.Shown(line)...                       while the first stream lasts
//   LogCursor::Search search = cursor.Resume(); search.Add(line)...   all that is kept, without following
//   for (line : search.Unshown()) show it
//   cursor.IsNew(line)...                       of the next stream, which follows from the beginning
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

  // One reading of everything that is kept.
  class Search {
   public:
    void Add(const v1::LogLine& line);
    // Lines after the place of each stream, in the order they came; at most kLinesMax. Sets the cursor behind the last.
    std::vector<v1::LogLine> Unshown();

   private:
    friend class LogCursor;
    explicit Search(LogCursor& cursor) : cursor_(cursor) {}
    struct Stream {
      uint64_t lines = 0;  // read so far
      uint64_t shown = 0;  // the place: so many of them were shown
      std::deque<std::string> last;
    };
    LogCursor& cursor_;
    std::map<Key, Stream> streams_;
    std::deque<std::pair<uint64_t, v1::LogLine>> lines_;  // each with its number in its stream, from 1
  };

  void Shown(const v1::LogLine& line);
  Search Resume() { return Search(*this); }
  // Of a stream from the beginning of what is kept, after Unshown: whether this line comes after what was shown then.
  bool IsNew(const v1::LogLine& line);

  // So many lines are compared. More than that many equal lines in a row may be told too few times after a break.
  static constexpr size_t kWindow = 16;
  static constexpr size_t kLinesMax = 100'000;

 private:
  static Key KeyOf(const v1::LogLine& line) { return {line.generation(), line.rank(), line.is_stderr()}; }
  static void Push(const std::string& text, std::deque<std::string>* last);

  std::map<Key, std::deque<std::string>> last_;
  std::map<Key, uint64_t> skip_;
};

}  // namespace trainyard::client
