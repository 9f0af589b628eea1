#include "coordinator/policy/goodput.h"

#include <algorithm>

namespace trainyard {
namespace {

void Add(GoodputPart part, uint64_t by, v1::GoodputRecord& ledger) {
  switch (part) {
    case GoodputPart::kQueue:
      return ledger.set_queue_ms(ledger.queue_ms() + by);
    case GoodputPart::kStart:
      return ledger.set_start_ms(ledger.start_ms() + by);
    case GoodputPart::kTrain:
      return ledger.set_train_ms(ledger.train_ms() + by);
    case GoodputPart::kSave:
      return ledger.set_save_ms(ledger.save_ms() + by);
    case GoodputPart::kLost:
      return ledger.set_lost_ms(ledger.lost_ms() + by);
    case GoodputPart::kDetect:
      return ledger.set_detect_ms(ledger.detect_ms() + by);
    case GoodputPart::kRecover:
      return ledger.set_recover_ms(ledger.recover_ms() + by);
    case GoodputPart::kPause:
      return ledger.set_pause_ms(ledger.pause_ms() + by);
  }
}

double Seconds(uint64_t ms) { return static_cast<double>(ms) / 1000; }

}  // namespace

const char* GoodputPartName(GoodputPart part) {
  switch (part) {
    case GoodputPart::kQueue:
      return "queue";
    case GoodputPart::kStart:
      return "start";
    case GoodputPart::kTrain:
      return "train";
    case GoodputPart::kSave:
      return "save";
    case GoodputPart::kLost:
      return "lost";
    case GoodputPart::kDetect:
      return "detect";
    case GoodputPart::kRecover:
      return "recover";
    case GoodputPart::kPause:
      return "pause";
  }
  return "unknown";
}

GoodputPart CurrentPart(const GoodputFacts& facts) {
  switch (facts.state) {
    case v1::JOB_STATE_PLACED:
    case v1::JOB_STATE_STARTING:
      return facts.generation <= 1 ? GoodputPart::kStart : GoodputPart::kRecover;
    case v1::JOB_STATE_RUNNING:
      return facts.saves ? GoodputPart::kSave : GoodputPart::kTrain;
    case v1::JOB_STATE_STOPPING:
      // The group still makes steps until it stops at a step boundary, and they count.
      if (!facts.makes_steps) return GoodputPart::kRecover;
      return facts.saves ? GoodputPart::kSave : GoodputPart::kTrain;
    case v1::JOB_STATE_RECOVERING:
      return GoodputPart::kRecover;
    case v1::JOB_STATE_PAUSED:
      return GoodputPart::kPause;
    default:
      return GoodputPart::kQueue;
  }
}

v1::GoodputRecord BeginGoodput(int64_t now_ms) {
  v1::GoodputRecord ledger;
  ledger.set_begin_unix_ms(now_ms);
  ledger.set_until_unix_ms(now_ms);
  return ledger;
}

void Account(GoodputPart part, int64_t now_ms, uint64_t ranks, v1::GoodputRecord& ledger) {
  if (now_ms < ledger.until_unix_ms()) {
    // The wall clock was set back: the recorded period moves back with it, and no time is counted.
    ledger.set_begin_unix_ms(ledger.begin_unix_ms() - (ledger.until_unix_ms() - now_ms));
    ledger.set_until_unix_ms(now_ms);
    return;
  }
  uint64_t span = static_cast<uint64_t>(now_ms - ledger.until_unix_ms()) * ranks;
  ledger.set_until_unix_ms(now_ms);
  Add(part, span, ledger);
  if (part != GoodputPart::kTrain) return;
  ledger.set_since_saved_ms(ledger.since_saved_ms() + span);
  ledger.set_since_step_ms(ledger.since_step_ms() + span);
}

void FollowWallClock(v1::GoodputRecord& ledger) {
  ledger.set_begin_unix_ms(ledger.begin_unix_ms() + ledger.wall_ahead_ms());
  ledger.set_until_unix_ms(ledger.until_unix_ms() + ledger.wall_ahead_ms());
  ledger.clear_wall_ahead_ms();
}

void CountRecordedStep(int64_t step_ms, uint64_t ranks, v1::GoodputRecord& ledger) {
  if (step_ms <= ledger.until_unix_ms()) return;
  Account(GoodputPart::kTrain, step_ms, ranks, ledger);
  StepCompleted(ledger);
}

void StepCompleted(v1::GoodputRecord& ledger, uint64_t since_ms) {
  ledger.set_since_step_ms(std::min(ledger.since_step_ms(), since_ms));
}

void StepsSaved(v1::GoodputRecord& ledger, uint64_t after_ms) {
  ledger.set_since_saved_ms(std::min(ledger.since_saved_ms(), std::max(ledger.since_step_ms(), after_ms)));
}

void StepsLost(v1::GoodputRecord& ledger) {
  uint64_t lost = ledger.since_saved_ms() - ledger.since_step_ms();
  ledger.set_train_ms(ledger.train_ms() - ledger.since_saved_ms());
  ledger.set_lost_ms(ledger.lost_ms() + lost);
  ledger.set_detect_ms(ledger.detect_ms() + ledger.since_step_ms());
  ledger.set_since_saved_ms(0);
  ledger.set_since_step_ms(0);
}

uint64_t PartMs(const v1::GoodputRecord& ledger, GoodputPart part) {
  switch (part) {
    case GoodputPart::kQueue:
      return ledger.queue_ms();
    case GoodputPart::kStart:
      return ledger.start_ms();
    case GoodputPart::kTrain:
      return ledger.train_ms();
    case GoodputPart::kSave:
      return ledger.save_ms();
    case GoodputPart::kLost:
      return ledger.lost_ms();
    case GoodputPart::kDetect:
      return ledger.detect_ms();
    case GoodputPart::kRecover:
      return ledger.recover_ms();
    case GoodputPart::kPause:
      return ledger.pause_ms();
  }
  return 0;
}

uint64_t TotalMs(const v1::GoodputRecord& ledger) {
  uint64_t total = 0;
  for (GoodputPart part : kGoodputParts) total += PartMs(ledger, part);
  return total;
}

v1::Goodput MakeGoodput(const v1::GoodputRecord& ledger) {
  v1::Goodput goodput;
  goodput.set_total_s(Seconds(TotalMs(ledger)));
  goodput.set_queue_s(Seconds(ledger.queue_ms()));
  goodput.set_start_s(Seconds(ledger.start_ms()));
  goodput.set_train_s(Seconds(ledger.train_ms()));
  goodput.set_save_s(Seconds(ledger.save_ms()));
  goodput.set_lost_s(Seconds(ledger.lost_ms()));
  goodput.set_detect_s(Seconds(ledger.detect_ms()));
  goodput.set_recover_s(Seconds(ledger.recover_ms()));
  goodput.set_pause_s(Seconds(ledger.pause_ms()));
  return goodput;
}

}  // namespace trainyard
